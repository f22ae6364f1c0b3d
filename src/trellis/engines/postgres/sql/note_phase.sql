update trellis.note set phase = $1, progress = null where job = $2

update trellis.note set progress = $1 where job = $2

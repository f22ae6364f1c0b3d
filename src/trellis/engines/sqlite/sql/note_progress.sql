update trellis_note set progress = ? where job = ?

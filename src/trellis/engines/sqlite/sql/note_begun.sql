update trellis_note set began_at = ? where job = ?

update trellis_note set seen_at = ? where job = ?

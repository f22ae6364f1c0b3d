update trellis_note set phase = ?, progress = null where job = ?

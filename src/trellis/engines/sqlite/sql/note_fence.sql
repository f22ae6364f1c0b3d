select session, token from trellis_queue where job = ?

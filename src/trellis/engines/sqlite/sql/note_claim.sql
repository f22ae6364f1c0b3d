select claim from trellis_note where job = ?

select name, status, detail from trellis.item where job = $1 order by name collate "C"

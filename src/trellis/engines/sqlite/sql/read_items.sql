select name, status, detail from trellis_item where job = ? order by name

delete from trellis.item where job = $1

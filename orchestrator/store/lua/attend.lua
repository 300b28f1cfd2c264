-- ARGV: term, reader, call
-- The owner in that term serves a reader's call; if somebody else owns the session now, the term
-- that is answered says so.
if field('term') == ARGV[1] and not overtaken(ARGV[2], ARGV[3]) then
  note_call(ARGV[2], ARGV[3])
end
return {'ok', field('term') or '0'}

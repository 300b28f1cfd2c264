-- ARGV: term, reader, call
-- The owner in that term serves a reader's call; it is no loss if somebody else owns it now.
if field('term') == ARGV[1] and not overtaken(ARGV[2], ARGV[3]) then
  note_call(ARGV[2], ARGV[3])
end
return {'ok'}

-- Prepended to every script. All keys of a session share one hash tag.
-- meta: a hash; text: committed tokens as packed little-endian uint32; rounds: a stream.
-- Replies are {code, ...}; codes that refuse: missing, fenced, overtaken,
-- aborted, ended, lost, torn, conflict.
local meta, text, rounds = KEYS[1], KEYS[2], KEYS[3]

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function integer(number)
  return string.format('%.0f', number)
end

local function field(name)
  return redis.call('HGET', meta, name)
end

-- Scripts may not be cut short between these: a key without an expiry stays for ever.
local function expire(ttl_ms)
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ttl_ms)
  end
end

local function hold()
  local terms = redis.call('HMGET', meta, 'lease_ms', 'ttl_ms')
  redis.call('HSET', meta, 'lease_until_ms', integer(now_ms() + terms[1]))
  expire(terms[2])
end

local function let_go(status, ttl_ms)
  redis.call('HSET', meta, 'status', status, 'lease_until_ms', '0')
  expire(ttl_ms)
end

local function forget_if_ephemeral()
  if field('ephemeral') == '1' then
    redis.call('DEL', text, rounds)
    redis.call('HDEL', meta, 'request', 'resolved', 'prompt', 'matched_stop')
  end
end

-- The end of a session; may be repeated, but not changed. nil, or why it is refused.
local function finish(reason, matched, ttl_ms)
  local stored = redis.call('HMGET', meta, 'status', 'finish_reason')
  if stored[1] == 'finished' then
    if stored[2] ~= reason then return {'conflict', 'already finished with ' .. stored[2]} end
    return
  end
  redis.call('HSET', meta, 'finish_reason', reason, 'matched_stop', matched)
  forget_if_ephemeral()
  let_go('finished', ttl_ms)
end

-- Name, value, ... of those of these fields that there are.
local function fields(names)
  local values, found = redis.call('HMGET', meta, unpack(names)), {}
  for i, name in ipairs(names) do
    if values[i] then
      found[#found + 1] = name
      found[#found + 1] = values[i]
    end
  end
  return found
end

-- Bytes that the session takes to be told whole.
local function size()
  return redis.call('HSTRLEN', meta, 'prompt') + redis.call('HSTRLEN', meta, 'resolved')
    + redis.call('STRLEN', text)
end

-- reader_calls: the last call of each of the latest readers, newest first: 'a/3 b/1'.
local function calls_by_reader()
  return string.gmatch(field('reader_calls') or '', '([^/ ]+)/(%d+)')
end

-- Whether a reader has called again since: a server that stood still may carry out a call
-- long after its reader went elsewhere. `reader` '' = not told.
local function overtaken(reader, call)
  for name, last in calls_by_reader() do
    if name == reader then return tonumber(call) < tonumber(last) end
  end
  return false
end

local function note_call(reader, call)
  local kept = {reader .. '/' .. call}
  for name, last in calls_by_reader() do
    if name ~= reader and #kept < 16 then kept[#kept + 1] = name .. '/' .. last end
  end
  redis.call('HSET', meta, 'reader_calls', table.concat(kept, ' '))
end

-- A text that is not as long as the record says: a server that evicts keys, or somebody by hand,
-- takes them one by one. nil, or why nothing may be built on it.
local function torn()
  local stored = redis.call('HMGET', meta, 'committed_len', 'ephemeral', 'status')
  local length, kept = tonumber(stored[1] or ''), redis.call('STRLEN', text)
  -- What is no record at all is its reader's to refuse.
  if not length or kept == 4 * length then return end
  -- An ephemeral end drops its text.
  local ended = stored[3] == 'finished' or stored[3] == 'aborted'
  if kept == 0 and ended and stored[2] == '1' then return end
  return {'torn', math.floor(kept / 4) .. ' of its ' .. integer(length) .. ' tokens'}
end

-- Why a write of `term` is refused, or nil. Finished sessions are the caller's to judge.
-- `owner`: '' = anybody; a server that lost an acquire may give the same term to two.
local function refusal(term, owner)
  local stored = redis.call('HMGET', meta, 'status', 'term', 'owner')
  if not stored[1] then return {'missing'} end
  if stored[1] == 'aborted' then return {'aborted'} end
  if tonumber(stored[2]) > tonumber(term) then return {'fenced', stored[2]} end
  if tonumber(stored[2]) < tonumber(term) then return {'lost', 'term ' .. stored[2]} end
  if owner ~= '' and stored[3] ~= owner then return {'fenced', stored[2]} end
  if stored[1] ~= 'finished' then return torn() end
end

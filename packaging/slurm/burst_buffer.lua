-- Slurm's burst_buffer/lua plugin, with Forebay behind it. It lies beside slurm.conf; burst_buffer.conf has
--   Directive=DW
--   Flags=TeardownFailure
-- Every function calls one program, dw_wlm_cli, in the convention of DataWarp, and passes its answer on. The rules
-- that this file keeps, for Slurm 22.05 to 26.05:
--   * A function returns 0 or 1, nothing else: Slurm takes the code modulo 256 for an exit status.
--   * A step counts as done only if the program itself said that it ended with 0. At a time limit Slurm kills the
--     program and not this function: without that last line of the shell the step would count as done.
--   * Nothing is left running, and no descriptor is passed on: Slurm waits for whoever holds its pipe.
--   * slurm_bb_pools, slurm_bb_job_process and slurm_bb_paths run inside of slurmctld. The program answers these
--     within a second, also if no server does, and no command of Slurm is called.
--   * Later versions of Slurm pass more arguments, and call two functions more.

local program = os.getenv("FOREBAY_DW_WLM_CLI") or "@LIBEXEC@/dw_wlm_cli"
local tables = os.getenv("FOREBAY_DWSTAT") or "@LIBEXEC@/dwstat"

local DONE, FAILED = 0, 1
-- Without characters that mean something in a pattern.
local MARK = "forebay_exit_status="

-- One word of a shell's command line.
local function word(text)
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

-- Runs a program: true if it ended with 0, and what it said.
local function run(path, words)
  local line = { word(path) }
  for _, text in ipairs(words) do
    line[#line + 1] = word(text)
  end
  local command = "exec 2>/dev/null </dev/null; " .. table.concat(line, " ") .. "; echo " .. MARK .. "$?"
  local pipe = io.popen(command, "r")
  if pipe == nil then
    return false, "cannot start " .. path
  end
  local said = pipe:read("*a") or ""
  pipe:close()
  local text, status = said:match("^(.*)" .. MARK .. "(%d+)%s*$")
  if status == nil then
    return false, "it was ended before it was done"
  end
  text = text:gsub("%s+$", "")
  if status ~= "0" and text == "" then
    text = "it ended with status " .. status
  end
  return status == "0", text
end

local function has(text, part)
  return text:find(part, 1, true) ~= nil
end

-- A step: its result for Slurm. What is not there any more is done.
local function step(name, words)
  local all = { "--function", name }
  for _, text in ipairs(words) do
    all[#all + 1] = text
  end
  local done, said = run(program, all)
  if not done and (has(said, "No matching session") or has(said, "token not found")) and name ~= "setup" and name ~= "pre_run" then
    done, said = true, ""
  end
  if done then
    return DONE, said
  end
  slurm.log_error("forebay: %s: %s", name, said)
  return FAILED, said
end

function slurm_bb_pools()
  return step("pools", {})
end

function slurm_bb_job_process(job_script, uid, gid, job_info)
  return step("job_process", { "--job", job_script })
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script, job_info)
  return step("setup", {
    "--token", job_id, "--caller", "SLURM", "--user", uid, "--groupid", gid,
    "--capacity", tostring(pool) .. ":" .. tostring(bb_size), "--job", job_script,
  })
end

function slurm_bb_data_in(job_id, job_script, uid, gid, job_info)
  return step("data_in", { "--token", job_id, "--job", job_script })
end

-- The step before has waited for the end.
function slurm_bb_test_data_in(job_id, job_script, uid, gid, job_info)
  return DONE, ""
end

function slurm_bb_real_size(job_id, uid, gid, job_info)
  local code, said = step("real_size", { "--token", job_id })
  if code ~= DONE then
    return code, said
  end
  local bytes = said:match('"capacity":(%d+)')
  if bytes == nil then
    return FAILED, "the size of the buffer is not known"
  end
  return DONE, bytes
end

function slurm_bb_paths(job_id, job_script, path_file, uid, gid, job_info)
  return step("paths", { "--job", job_script, "--token", job_id, "--pathfile", path_file })
end

function slurm_bb_pre_run(job_id, job_script, uid, gid, job_info)
  local words = { "--token", job_id, "--job", job_script }
  -- From 23.02 on Slurm says here on which nodes the job runs; before that the program asks scontrol.
  if type(job_info) == "table" and type(job_info["nodes"]) == "string" then
    words[#words + 1] = "--nodes"
    words[#words + 1] = job_info["nodes"]
  end
  return step("pre_run", words)
end

function slurm_bb_post_run(job_id, job_script, uid, gid, job_info)
  return step("post_run", { "--token", job_id, "--job", job_script })
end

function slurm_bb_data_out(job_id, job_script, uid, gid, job_info)
  return step("data_out", { "--token", job_id, "--job", job_script })
end

function slurm_bb_test_data_out(job_id, job_script, uid, gid, job_info)
  return DONE, ""
end

function slurm_bb_job_teardown(job_id, job_script, hurry, uid, gid)
  local words = { "--token", job_id, "--job", job_script }
  if tostring(hurry) == "true" then
    words[#words + 1] = "--hurry"
  end
  return step("teardown", words)
end

function slurm_bb_get_status(...)
  local words = { ... }
  -- From 24.05 on the user and group of who asks come first.
  while #words > 0 and tostring(words[1]):match("^%d+$") do
    table.remove(words, 1)
  end
  local done, said = run(tables, words)
  if done then
    return DONE, said .. "\n"
  end
  return FAILED, said
end

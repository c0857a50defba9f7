# SPDX-License-Identifier: Apache-2.0
"""Runs reference.py over fixed inputs and prints inputs and outputs as JSON.

No random numbers: lengths and arrivals come from small arithmetic sequences,
and the whole request list of every case is part of the output.
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import reference

made, steps = [], [0]


class Recorded(reference.R):
    """A request that is kept after reference.simulate has returned."""

    def __init__(self):
        made.append(self)


def counted(*args, step_time=reference.step_time):
    steps[0] += 1
    return step_time(*args)


reference.R = Recorded
reference.step_time = counted


def lengths(n, prompt, output, spread):
    """n (arrival, prompt, output) with lengths within ±spread of the means."""
    out, t = [], 0.0
    for i in range(n):
        t += 0.0173 + 0.0031 * ((i * 7) % 11)
        p = int(prompt * (1 + spread * (((i * 37) % 101) / 50 - 1)))
        o = int(output * (1 + spread * (((i * 53) % 97) / 48 - 1)))
        out.append((round(t, 6), max(1, p), max(1, o)))
    return out


def case(name, requests, concurrency=None, **cfg):
    made.clear()
    steps[0] = 0
    c = reference.Cfg(**cfg)
    summary = reference.simulate(c, requests, conc=concurrency)
    row = dict(name=name, config=vars(c), concurrency=concurrency or 0, requests=requests)
    if 'error' in summary:
        row['error'] = summary['error']
        return row
    row['summary'] = dict(blocks=summary['blocks'], duration=summary['T'], steps=steps[0],
                          preemptions=summary['preempt'], maxUsage=summary['maxuse'],
                          requestsPerSecond=summary['rps'], outputTokensPerSecond=summary['otps'],
                          ttftP99=summary['ttft99'], tpotP99Ms=summary['tpot99'])
    row['timings'] = [(r.arr, r.ttft, r.done, r.np) for r in made]
    return row


mixed = lengths(120, 700, 90, 0.9)
short = lengths(200, 60, 40, 0.8)
long = lengths(60, 6000, 1500, 0.5)
growing = lengths(150, 200, 1000, 0.6)
cases = [
    case('open loop, defaults of the reference', mixed),
    case('open loop, async', mixed, async_sched=True),
    case('open loop, idle gaps', [(t * 9, p, o) for t, p, o in short[:60]]),
    case('open loop, without chunked prefill', mixed, chunked=False, max_num_seqs=64),
    case('open loop, small budget', mixed, mnbt=256, async_sched=True),
    case('closed loop, 1 client', short[:40], 1),
    case('closed loop, 32 clients', mixed, 32, async_sched=True),
    case('closed loop, more clients than sequences', mixed, 100, max_num_seqs=16, async_sched=True),
    case('closed loop, more clients than requests', short, 500, async_sched=True),
    case('closed loop, without chunked prefill', mixed, 48, chunked=False, mnbt=2048, async_sched=True),
    case('closed loop, budget smaller than the running sequences', short, 150, mnbt=64, async_sched=True),
    case('closed loop, eager', mixed, 64, eager=True, async_sched=True),
    case('closed loop, graphs up to 16', mixed, 64, graph_max=16, async_sched=True),
    case('closed loop, fp8 KV', long[:24], 24, kv_bytes=65536, async_sched=True),
    case('closed loop, tp 2', mixed, 64, tp=2, async_sched=True),
    case('closed loop, tp 4', mixed, 64, tp=4, async_sched=True),
    case('closed loop, prefix cache', mixed, 64, prefix_hit=0.6, async_sched=True),
    case('closed loop, everything in the prefix cache', [(0.0, 160, 20)] * 30, 8, prefix_hit=1.0, async_sched=True),
    case('pre-emption, closed loop', long, 60, gmu=0.35, max_num_seqs=60, async_sched=True),
    case('pre-emption, small budget', long, 60, gmu=0.33, max_num_seqs=60, mnbt=512),
    case('pre-emption, without chunked prefill', long[:40], 40, gmu=0.37, mnbt=16384, chunked=False),
    case('pre-emption, answers longer than prompts', growing, 150, gmu=0.27, mnbt=2048, async_sched=True),
    case('pre-emption, with a prefix cache', growing, 150, gmu=0.26, mnbt=300, prefix_hit=0.5, async_sched=True),
    case('pre-emption, open loop', [(t / 4, p, o) for t, p, o in long], gmu=0.34, async_sched=True),
    case('free memory', [], gmu=0.995),
    case('out of memory', [], gmu=0.99),
    case('out of memory, tp 2', [], gmu=0.98, tp=2),
    case('no room for blocks', [], gmu=0.2),
]
print('[')
print(',\n'.join(json.dumps(c, separators=(',', ':')) for c in cases))
print(']')

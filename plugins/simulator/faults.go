// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"
)

// ErrCrashed and ErrOutOfMemory are returned by Server.Serve when the fault of
// that name has ended the engine.
var (
	ErrCrashed     = errors.New("engine crashed on request")
	ErrOutOfMemory = errors.New("engine ran out of memory on request")
)

// Faults are failures to play. The zero value has none. Requests are the
// completions and chat completions, numbered from 1 as they arrive.
type Faults struct {
	CrashAt         int           // Serve ends with ErrCrashed when this request arrives
	OutOfMemoryAt   int           // Serve ends with ErrOutOfMemory when this request arrives
	HangFrom        int           // this and later requests are never answered
	MidstreamErrors float64       // share of answers that break off half way with an error
	HTTP500s        float64       // share of requests answered with status 500
	SlowFirstToken  time.Duration // added to every TTFT, divided by the time scale
	NotServing      bool          // healthy, but completions are answered with status 503
	seed            int64
}

// fatal returns the error with which request n ends the engine, or nil.
func (f Faults) fatal(n int) error {
	switch {
	case f.CrashAt > 0 && n >= f.CrashAt:
		return ErrCrashed
	case f.OutOfMemoryAt > 0 && n >= f.OutOfMemoryAt:
		return ErrOutOfMemory
	}
	return nil
}

func (f Faults) hangs(n int) bool { return f.HangFrom > 0 && n >= f.HangFrom }

func (f Faults) http500(n int) bool { return draw(f.seed, n, "http500") < f.HTTP500s }

func (f Faults) midstream(n int) bool { return draw(f.seed, n, "midstream") < f.MidstreamErrors }

// draw returns a number in [0, 1) that depends on nothing but its arguments.
func draw(seed int64, n int, what string) float64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(seed))
	binary.LittleEndian.PutUint64(b[8:], uint64(n))
	h.Write(b[:])
	h.Write([]byte(what))
	return unit(h.Sum64())
}

// unit maps a hash to [0, 1). FNV leaves the high bits of similar inputs
// similar, so they are mixed first (the finalizer of MurmurHash3).
func unit(h uint64) float64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return float64(h>>11) / (1 << 53)
}

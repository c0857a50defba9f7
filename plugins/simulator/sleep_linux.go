// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"runtime"
	"syscall"
	"time"
)

// timerSlack is how late a Go timer may fire on Linux: the runtime waits in
// epoll, which counts whole milliseconds.
const timerSlack = 1100 * time.Microsecond

// sleepUntil waits until t or until ctx is done, to about 0.1 ms. The last
// millisecond is slept in the kernel. That holds on to a processor of the
// runtime, so it is done only when no other goroutine wants it.
func sleepUntil(ctx context.Context, t time.Time) {
	if d := time.Until(t) - timerSlack; d > 0 && pause(ctx, d) != nil {
		return
	}
	for rest := time.Until(t); rest > 0; rest = time.Until(t) {
		if !quiet() {
			continue
		}
		ts := syscall.NsecToTimespec(int64(rest))
		// A signal ends the sleep early, which the loop makes up for.
		if err := syscall.Nanosleep(&ts, nil); err != nil && err != syscall.EINTR {
			return
		}
	}
}

// quiet lets others run and reports whether there were none. Coming back at
// once is the sign of that; twice, because now and then the scheduler prefers
// this goroutine to a waiting one.
func quiet() bool {
	const atOnce = 3 * time.Microsecond
	for range 2 {
		before := time.Now()
		runtime.Gosched()
		if time.Since(before) > atOnce {
			return false
		}
	}
	return true
}

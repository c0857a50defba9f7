// SPDX-License-Identifier: Apache-2.0

package simulator

import "slices"

// queue is the waiting line. Only pre-empted sequences go to its front, so it
// is a stack of those on top of a first-in-first-out line; every operation
// but remove takes constant time.
type queue struct {
	preempted []*Sequence // last is first in line
	fresh     []*Sequence // fresh[head:]
	head      int
}

func (q *queue) len() int { return len(q.preempted) + len(q.fresh) - q.head }

func (q *queue) push(s *Sequence) { q.fresh = append(q.fresh, s) }

func (q *queue) pushFront(s *Sequence) { q.preempted = append(q.preempted, s) }

func (q *queue) first() *Sequence {
	if n := len(q.preempted); n > 0 {
		return q.preempted[n-1]
	}
	return q.fresh[q.head]
}

func (q *queue) pop() {
	if n := len(q.preempted); n > 0 {
		q.preempted[n-1] = nil
		q.preempted = q.preempted[:n-1]
		return
	}
	q.fresh[q.head] = nil
	q.head++
	if q.head*2 > len(q.fresh) {
		n := copy(q.fresh, q.fresh[q.head:])
		clear(q.fresh[n:])
		q.fresh, q.head = q.fresh[:n], 0
	}
}

func (q *queue) remove(s *Sequence) {
	if i := slices.Index(q.preempted, s); i >= 0 {
		q.preempted = slices.Delete(q.preempted, i, i+1)
	} else if i := slices.Index(q.fresh[q.head:], s); i >= 0 {
		q.fresh = slices.Delete(q.fresh, q.head+i, q.head+i+1)
	}
}

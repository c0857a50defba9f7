// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"errors"
	"fmt"
)

// Largest is the request of the load with the most tokens, prompt and answer together; 0, 0 where that is
// not known in advance, as for a dataset.
func (c Config) Largest() (input, output int) {
	take := func(in, out int) {
		if in+out > input+output {
			input, output = in, out
		}
	}
	switch {
	case c.Trace != nil:
		for _, row := range c.Trace.Rows {
			take(row.Input, row.Output)
		}
	case c.Conversations != nil:
		for i := range c.Conversations.NumConversations {
			talk := c.Conversations.draw(c.Conversations.seed(c.Seed), i)
			for turn := range talk.input {
				take(talk.tokens(turn), talk.output[turn])
			}
		}
	case c.Dataset == nil:
		take(c.Workload.Input.Longest(), c.Workload.Output.Longest())
	}
	return input, output
}

// single is the load of one request, of the Largest shape where that is known, but of least output tokens or
// more. Its prompt is none of the load's.
func (c Config) single(least int) (one Config, known bool) {
	input, output := c.Largest()
	if known = input > 0; known {
		c.Workload = Workload{FixedLength(input), FixedLength(max(output, least))}
		c.Trace, c.Dataset, c.Conversations = nil, nil, nil
		c.Seed = mix(c.Seed ^ mix(uint64(output)))
	}
	c.Rate, c.RampUp, c.Concurrency, c.MaxRequests, c.Duration, c.Warmup, c.WarmupRatio = 0, 0, 1, 1, 0, -1, 0
	c.StopWhenDecided, c.Log = false, nil
	return c, known
}

// Once sends one request of the Largest shape, but of at least output tokens, or the first one of a dataset, and
// returns what was measured of it. The error is one of Run's, or that of the request.
func Once(ctx context.Context, c Config, output int) (Record, error) {
	c, _ = c.single(output)
	r, err := Run(ctx, c)
	if err != nil {
		return Record{}, err
	}
	rec := r.Records[0]
	if !rec.OK() {
		return rec, fmt.Errorf("%s: %s", rec.Category, rec.Error)
	}
	return rec, nil
}

// errProbed cuts a probe off when it has its answer.
var errProbed = errors.New("the server answers")

// Probe sends one request of the Largest shape and returns with its first token, so that a load that the
// server cannot take is found before it is put on. The error is ErrConfig where the server refuses the
// request, and the failure's own text otherwise. Where the largest shape is not known nothing is sent.
func Probe(ctx context.Context, c Config) error {
	c, known := c.single(0)
	if !known {
		return nil
	}
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	l, err := newLevel(c, 1)
	if err != nil {
		return err
	}
	if c.Client == nil {
		defer l.client.CloseIdleConnections()
	}
	if c.API == Chat {
		if err := l.calibrate(ctx); err != nil {
			return err
		}
	}
	l.workers[0].stream.first = func() { l.cancel(errProbed) }
	if err := l.run(ctx); err != nil && !errors.Is(err, errProbed) {
		return err
	}
	if rec := l.records[0]; !rec.OK() && rec.Category != Cancelled {
		return fmt.Errorf("a request of %d tokens in and %d out: %s: %s", rec.PromptTarget, rec.OutputTarget, rec.Category, rec.Error)
	}
	return nil
}

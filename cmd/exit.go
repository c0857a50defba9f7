// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/state"
)

// Exit codes, the same for every command.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2 // wrong usage or an invalid file
	exitInfeasible  = 3 // finished, but nothing met the SLA
	exitTimedOut    = 4 // strategy.timeout; can be resumed
	exitLocked      = 5 // another run has the experiment
	exitInterrupted = 130
)

// exit is the only place that turns an error into a message and an exit code.
func exit(err error, stderr io.Writer) int {
	code := exitCode(err)
	var wrapped exitError
	if err != nil && !errors.As(err, &wrapped) {
		fmt.Fprintln(stderr, "error:", err)
	}
	return code
}

func exitCode(err error) int {
	var wrapped exitError
	var usage *autobench.UsageError
	var problems *experiment.Problems
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrapped):
		return int(wrapped)
	case errors.As(err, &usage), errors.As(err, &problems):
		return exitUsage
	case errors.Is(err, autobench.ErrNothingFeasible), errors.Is(err, errMissed):
		return exitInfeasible
	case errors.Is(err, experiment.ErrTimedOut):
		return exitTimedOut
	case errors.Is(err, state.ErrLocked):
		return exitLocked
	case errors.Is(err, experiment.ErrInterrupted):
		return exitInterrupted
	default:
		return exitFailure
	}
}

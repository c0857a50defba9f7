// SPDX-License-Identifier: Apache-2.0

package experiment

// Event tells a view what a run is doing.
type Event struct {
	Kind     EventKind
	Template string
	Index    int    // of the trial
	Params   Params // of a started trial
	Trial    *Trial // of a finished trial
	Text     string // a phase, a reason or a warning
}

// EventKind says what an Event is about.
type EventKind int

// The kinds of events, with the fields that matter.
const (
	TemplateStarted  EventKind = iota // Template; Index is the number of trials already there
	TrialStarted                      // Template, Index, Params
	PhaseStarted                      // Template, Index, Text
	TrialFinished                     // Trial
	TrialInterrupted                  // Template, Index: not recorded
	TemplateFinished                  // Template, Text: why
	Warned                            // Text; Template and Index when they are known
)

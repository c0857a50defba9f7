// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Process says how the requests of an open loop are spaced.
type Process string

const (
	// Constant leaves the same time between any two requests.
	Constant Process = "constant"
	// Poisson has exponentially distributed gaps: independent users.
	Poisson Process = "poisson"
	// Gamma has gamma-distributed gaps of shape Burstiness: below 1 they come in
	// bursts, 1 is Poisson, and the larger it is the more even they are.
	Gamma Process = "gamma"
)

// Arrival is the process of an open loop; the mean gap is always 1/rate.
type Arrival struct {
	Process    Process
	Burstiness float64 // of Gamma
}

// ParseArrival reads constant, poisson or gamma(burstiness).
func ParseArrival(s string) (Arrival, error) {
	name, rest, args := strings.Cut(strings.TrimSpace(s), "(")
	a := Arrival{Process: Process(strings.TrimSpace(name))}
	switch {
	case args && a.Process == Gamma:
		number, ok := strings.CutSuffix(rest, ")")
		b, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if !ok || err != nil {
			return Arrival{}, fmt.Errorf("arrival %q: want gamma(burstiness), such as gamma(0.5)", s)
		}
		a.Burstiness = b
	case args || a.Process == Gamma:
		return Arrival{}, fmt.Errorf("arrival %q: want constant, poisson or gamma(burstiness)", s)
	}
	if err := a.validate(); err != nil {
		return Arrival{}, fmt.Errorf("arrival %q: %w", s, err)
	}
	return a, nil
}

// String is the form that ParseArrival reads.
func (a Arrival) String() string {
	if a.Process == Gamma {
		return "gamma(" + strconv.FormatFloat(a.Burstiness, 'g', -1, 64) + ")"
	}
	return string(a.Process)
}

func (a Arrival) validate() error {
	switch a.Process {
	case Constant, Poisson:
		return nil
	case Gamma:
		if a.Burstiness >= 0.01 && a.Burstiness <= 1e6 { // false for NaN
			return nil
		}
		return fmt.Errorf("the burstiness must be from 0.01 to 1e+06, is %g", a.Burstiness)
	}
	return errors.New("want constant, poisson or gamma(burstiness)")
}

// gap draws a gap with mean 1.
func (a Arrival) gap(r *rand.Rand) float64 {
	switch a.Process {
	case Poisson:
		return r.ExpFloat64()
	case Gamma:
		return gamma(r, a.Burstiness) / a.Burstiness
	}
	return 1
}

// gamma draws from the gamma distribution of the given shape and scale 1: Marsaglia and Tsang, "A
// simple method for generating gamma variables" (2000), with their boost for shapes below 1.
func gamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(r, shape+1) * math.Pow(1-r.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// schedule gives the times at which requests are due, since the beginning of the phase.
type schedule interface {
	// next is when the following request is due; false: there is none.
	next() (time.Duration, bool)
}

// rated is the schedule of a rate that grows linearly from 0 during the ramp. Gaps are drawn for a rate
// of 1 and the sum s of them is carried over to the time t by which the wanted rate has sent s
// requests: s = rate·t²/(2·ramp) during the ramp, s = rate·(t − ramp/2) after it.
type rated struct {
	arrival Arrival
	random  *rand.Rand
	rate    float64 // requests/s
	ramp    float64 // s
	sum     float64
	begun   bool
}

func (s *rated) next() (time.Duration, bool) {
	if s.begun {
		s.sum += s.arrival.gap(s.random)
	}
	s.begun = true
	t := s.sum/s.rate + s.ramp/2
	if t < s.ramp {
		t = math.Sqrt(2 * s.ramp * s.sum / s.rate)
	}
	if t > math.MaxInt64/2e9 {
		return 0, false
	}
	return time.Duration(t * float64(time.Second)), true
}

// replayed is the schedule of a trace.
type replayed struct {
	rows []TraceRow
	at   int
}

func (s *replayed) next() (time.Duration, bool) {
	if s.at == len(s.rows) {
		return 0, false
	}
	s.at++
	return s.rows[s.at-1].At, true
}

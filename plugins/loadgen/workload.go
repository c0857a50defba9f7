// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Workload says how many tokens prompts and answers have.
type Workload struct {
	Input  Length
	Output Length
}

// Shape is the distribution of a Length.
type Shape string

const (
	// Fixed is always Min tokens.
	Fixed Shape = "fixed"
	// Normal is a normal distribution truncated to [Min, Max], then rounded.
	Normal Shape = "normal"
	// Lognormal is the same of a lognormal distribution. Mean and StdDev are its own, m and s, not those
	// of the logarithm: μ = ln(m²/√(m²+s²)), σ² = ln(1+s²/m²). Its tail is long, so that cutting it at the
	// default Max lowers the mean: by 3 % for s = m/2, by 9 % for s = m.
	Lognormal Shape = "lognormal"
	// Uniform is every whole number from Min to Max, both included.
	Uniform Shape = "uniform"
)

// maxTokens bounds what a workload may ask for; it is far above any model's context.
const maxTokens = 1e8

// Length is a distribution of whole numbers, such as token counts. The zero value is always 0.
type Length struct {
	Shape Shape
	// Mean and StdDev belong to Normal and Lognormal.
	Mean, StdDev float64
	// Min and Max belong to Uniform; Min alone to Fixed. For Normal and Lognormal they are the limits;
	// 0 means 1 and Mean+3·StdDev.
	Min, Max int
}

// FixedLength is always n tokens.
func FixedLength(n int) Length { return Length{Shape: Fixed, Min: n} }

// NormalLength is normally distributed, truncated to [1, mean+3·stdDev].
func NormalLength(mean, stdDev float64) Length {
	return Length{Shape: Normal, Mean: mean, StdDev: stdDev}
}

// LognormalLength is lognormally distributed, truncated to [1, mean+3·stdDev].
func LognormalLength(mean, stdDev float64) Length {
	return Length{Shape: Lognormal, Mean: mean, StdDev: stdDev}
}

// UniformLength is any number of tokens from lowest to highest, both included.
func UniformLength(lowest, highest int) Length {
	return Length{Shape: Uniform, Min: lowest, Max: highest}
}

// ParseWorkload reads fixed(in,out), normal(mean_in,sd_in/mean_out,sd_out), the same with lognormal, or
// uniform(min_in,max_in/min_out,max_out). Spaces do not matter.
func ParseWorkload(s string) (Workload, error) {
	w, err := parseWorkload(s)
	if err == nil {
		err = w.validate()
	}
	if err != nil {
		return Workload{}, fmt.Errorf("workload %q: %w", s, err)
	}
	return w, nil
}

func parseWorkload(s string) (Workload, error) {
	name, rest, found := strings.Cut(s, "(")
	args, tail, closed := strings.Cut(rest, ")")
	switch {
	case !found:
		return Workload{}, errors.New("want fixed(in,out), normal(mean,sd/mean,sd), lognormal(mean,sd/mean,sd) or uniform(min,max/min,max)")
	case !closed:
		return Workload{}, errors.New("the closing parenthesis is missing")
	case strings.TrimSpace(tail) != "":
		return Workload{}, fmt.Errorf("unexpected %q after the closing parenthesis", strings.TrimSpace(tail))
	}
	switch shape := Shape(strings.TrimSpace(name)); shape {
	case Fixed:
		n, err := integers(args, "in,out")
		return Workload{Input: FixedLength(n[0]), Output: FixedLength(n[1])}, err
	case Normal, Lognormal, Uniform:
		in, out, found := strings.Cut(args, "/")
		if !found {
			return Workload{}, errors.New("the output part is missing: input and output are separated by a slash")
		}
		input, err := parseLength(shape, in)
		if err != nil {
			return Workload{}, fmt.Errorf("input: %w", err)
		}
		output, err := parseLength(shape, out)
		if err != nil {
			return Workload{}, fmt.Errorf("output: %w", err)
		}
		return Workload{Input: input, Output: output}, nil
	default:
		return Workload{}, fmt.Errorf("unknown distribution %q: must be %s", shape, shapes)
	}
}

func parseLength(shape Shape, args string) (Length, error) {
	if shape == Uniform {
		n, err := integers(args, "min,max")
		return UniformLength(n[0], n[1]), err
	}
	parts, err := pair(args, "mean,sd")
	if err != nil {
		return Length{}, err
	}
	var v [2]float64
	for i, part := range parts {
		if v[i], err = strconv.ParseFloat(part, 64); err != nil {
			return Length{}, fmt.Errorf("%q is not a number", part)
		}
	}
	return Length{Shape: shape, Mean: v[0], StdDev: v[1]}, nil
}

func integers(args, want string) (n [2]int, err error) {
	parts, err := pair(args, want)
	if err != nil {
		return n, err
	}
	for i, part := range parts {
		if n[i], err = strconv.Atoi(part); err != nil {
			return n, fmt.Errorf("%q is not a whole number", part)
		}
	}
	return n, nil
}

func pair(args, want string) ([]string, error) {
	parts := strings.Split(args, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" {
		return nil, fmt.Errorf("want two numbers %s, have %q", want, strings.TrimSpace(args))
	}
	return parts, nil
}

// String is the form that ParseWorkload reads.
func (w Workload) String() string {
	in, out := w.Input, w.Output
	switch {
	case in.Shape != out.Shape:
		return fmt.Sprintf("input %v, output %v", in, out)
	case in.Shape == Fixed:
		return fmt.Sprintf("fixed(%s,%s)", in.args(), out.args())
	default:
		return fmt.Sprintf("%s(%s/%s)", in.Shape, in.args(), out.args())
	}
}

// String is shape(parameters), such as normal(480,240).
func (l Length) String() string { return fmt.Sprintf("%s(%s)", l.Shape, l.args()) }

func (l Length) args() string {
	switch l.Shape {
	case Normal, Lognormal:
		return strconv.FormatFloat(l.Mean, 'f', -1, 64) + "," + strconv.FormatFloat(l.StdDev, 'f', -1, 64)
	case Uniform:
		return strconv.Itoa(l.Min) + "," + strconv.Itoa(l.Max)
	default:
		return strconv.Itoa(l.Min)
	}
}

func (w Workload) validate() error {
	if err := w.Input.validate(tokenCount); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	if err := w.Output.validate(tokenCount); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

// unit is what the numbers of a Length count.
type unit struct {
	name  string
	least float64 // smallest number that makes sense
	scale float64 // so many are one of what users write: 1000 for milliseconds, which are written as seconds
}

var tokenCount = unit{name: "tokens", least: 1, scale: 1}

func (l Length) validate(u unit) error {
	switch l.Shape {
	case Fixed:
		return u.check(u.name, float64(l.Min), u.least)
	case Normal, Lognormal:
		if err := errors.Join(u.check("mean", l.Mean, u.least), u.check("standard deviation", l.StdDev, 0)); err != nil {
			return err
		}
		if l.Shape == Lognormal && l.Mean == 0 {
			return errors.New("the mean of a lognormal distribution must be above 0")
		}
		if low, high := l.bounds(); low < 1 || high > maxTokens || low > high {
			return fmt.Errorf("the limits %g and %g must be in order, from %g to %g", float64(low)/u.scale, float64(high)/u.scale, 1/u.scale, maxTokens/u.scale)
		}
		return nil
	case Uniform:
		if l.Max < l.Min {
			return fmt.Errorf("the largest length %g is below the smallest, %g", float64(l.Max)/u.scale, float64(l.Min)/u.scale)
		}
		return errors.Join(u.check("smallest length", float64(l.Min), u.least), u.check("largest length", float64(l.Max), u.least))
	default:
		return fmt.Errorf("unknown distribution %q: must be %s", l.Shape, shapes)
	}
}

// check names a number that is out of range, as the user wrote it.
func (u unit) check(name string, v, lowest float64) error {
	if v >= lowest && v <= maxTokens { // false for NaN
		return nil
	}
	return fmt.Errorf("the %s must be from %g to %g, is %g", name, lowest/u.scale, maxTokens/u.scale, v/u.scale)
}

// shapes lists the distributions, for messages.
var shapes = fmt.Sprintf("%s, %s, %s or %s", Fixed, Normal, Lognormal, Uniform)

// bounds are what Normal and Lognormal are truncated to.
func (l Length) bounds() (low, high int) {
	low, high = l.Min, l.Max
	if low == 0 {
		low = 1
	}
	if high == 0 {
		high = int(min(max(math.Round(l.Mean+3*l.StdDev), 1), maxTokens))
	}
	return low, high
}

// Longest is the largest number that Draw can return.
func (l Length) Longest() int {
	switch l.Shape {
	case Normal, Lognormal:
		_, high := l.bounds()
		return high
	case Uniform:
		return l.Max
	default:
		return l.Min
	}
}

// Draw returns one number.
func (l Length) Draw(r *rand.Rand) int {
	switch l.Shape {
	case Uniform:
		return l.Min + r.IntN(l.Max-l.Min+1)
	case Normal, Lognormal:
		return l.drawTruncated(r)
	default:
		return l.Min
	}
}

// drawTries is how often a value is drawn until it is within its limits. With the default limits a few
// are enough; where the limits are far off the mean, the nearer one is the answer.
const drawTries = 64

func (l Length) drawTruncated(r *rand.Rand) int {
	low, high := l.bounds()
	x := 0.0
	for range drawTries {
		if z := r.NormFloat64(); l.Shape == Lognormal {
			variance := math.Log1p(l.StdDev * l.StdDev / (l.Mean * l.Mean))
			x = l.Mean * math.Exp(math.Sqrt(variance)*z-variance/2)
		} else {
			x = l.Mean + l.StdDev*z
		}
		if x >= float64(low) && x <= float64(high) {
			return int(math.Round(x))
		}
	}
	return min(max(int(min(x, maxTokens)), low), high)
}

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
	// Normal is a normal distribution truncated to [1, Mean+3·StdDev], then rounded.
	Normal Shape = "normal"
	// Uniform is every whole number from Min to Max, both included.
	Uniform Shape = "uniform"
)

// maxTokens bounds what a workload may ask for; it is far above any model's context.
const maxTokens = 1e8

// Length is a distribution of token counts; every count drawn is at least 1.
type Length struct {
	Shape Shape
	// Mean and StdDev belong to Normal.
	Mean, StdDev float64
	// Min and Max belong to Uniform; Min alone to Fixed.
	Min, Max int
}

// FixedLength is always n tokens.
func FixedLength(n int) Length { return Length{Shape: Fixed, Min: n} }

// NormalLength is normally distributed, truncated to [1, mean+3·stdDev].
func NormalLength(mean, stdDev float64) Length {
	return Length{Shape: Normal, Mean: mean, StdDev: stdDev}
}

// UniformLength is any number of tokens from lowest to highest, both included.
func UniformLength(lowest, highest int) Length {
	return Length{Shape: Uniform, Min: lowest, Max: highest}
}

// ParseWorkload reads fixed(in,out), normal(mean_in,sd_in/mean_out,sd_out) or
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
		return Workload{}, errors.New("want fixed(in,out), normal(mean,sd/mean,sd) or uniform(min,max/min,max)")
	case !closed:
		return Workload{}, errors.New("the closing parenthesis is missing")
	case strings.TrimSpace(tail) != "":
		return Workload{}, fmt.Errorf("unexpected %q after the closing parenthesis", strings.TrimSpace(tail))
	}
	switch shape := Shape(strings.TrimSpace(name)); shape {
	case Fixed:
		n, err := integers(args, "in,out")
		return Workload{Input: FixedLength(n[0]), Output: FixedLength(n[1])}, err
	case Normal, Uniform:
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
		return Workload{}, fmt.Errorf("unknown distribution %q: must be %s, %s or %s", shape, Fixed, Normal, Uniform)
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
	return NormalLength(v[0], v[1]), nil
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
	case Normal:
		return strconv.FormatFloat(l.Mean, 'f', -1, 64) + "," + strconv.FormatFloat(l.StdDev, 'f', -1, 64)
	case Uniform:
		return strconv.Itoa(l.Min) + "," + strconv.Itoa(l.Max)
	default:
		return strconv.Itoa(l.Min)
	}
}

func (w Workload) validate() error {
	if err := w.Input.validate(); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	if err := w.Output.validate(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

func (l Length) validate() error {
	switch l.Shape {
	case Fixed:
		return inRange("tokens", float64(l.Min), 1)
	case Normal:
		return errors.Join(inRange("mean", l.Mean, 1), inRange("standard deviation", l.StdDev, 0))
	case Uniform:
		if l.Max < l.Min {
			return fmt.Errorf("the largest length %d is below the smallest, %d", l.Max, l.Min)
		}
		return errors.Join(inRange("smallest length", float64(l.Min), 1), inRange("largest length", float64(l.Max), 1))
	default:
		return fmt.Errorf("unknown distribution %q: must be %s, %s or %s", l.Shape, Fixed, Normal, Uniform)
	}
}

func inRange(name string, v, lowest float64) error {
	if v >= lowest && v <= maxTokens { // false for NaN
		return nil
	}
	return fmt.Errorf("the %s must be from %g to %g, is %g", name, lowest, maxTokens, v)
}

// Longest is the largest number of tokens that Draw can return.
func (l Length) Longest() int {
	switch l.Shape {
	case Normal:
		return int(math.Round(l.Mean + 3*l.StdDev))
	case Uniform:
		return l.Max
	default:
		return l.Min
	}
}

// Draw returns one token count.
func (l Length) Draw(r *rand.Rand) int {
	switch l.Shape {
	case Uniform:
		return l.Min + r.IntN(l.Max-l.Min+1)
	case Normal:
		return l.drawNormal(r)
	default:
		return l.Min
	}
}

// drawNormal draws again until the value is in range. The mean is at least 1, so more than 49 % of the
// draws are, and the loop is short.
func (l Length) drawNormal(r *rand.Rand) int {
	for {
		x := l.Mean + l.StdDev*r.NormFloat64()
		if x >= 1 && x <= l.Mean+3*l.StdDev {
			return int(math.Round(x))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// DomainType names how the values of a parameter are laid out.
type DomainType string

// The types of a search-space entry.
const (
	FloatDomain       DomainType = "float"       // min ≤ x ≤ max, every step when one is given
	IntDomain         DomainType = "int"         // min, min+step, … ≤ max; step 1 by default
	Pow2Domain        DomainType = "pow2"        // the powers of two in [min, max]
	CategoricalDomain DomainType = "categorical" // the listed values, unordered
	BoolDomain        DomainType = "bool"        // false, true
)

// Domain is the set of values of one parameter. Both ends of a range belong to it.
type Domain struct {
	Type DomainType `json:"type"`
	Min  *float64   `json:"min,omitempty"`
	Max  *float64   `json:"max,omitempty"`
	// Step is the distance between neighbours; 0 means continuous for float and 1 for int.
	Step float64 `json:"step,omitempty"`
	// Log spreads positions evenly over the logarithm of the value (float and int without step).
	Log    bool    `json:"log,omitempty"`
	Values []Value `json:"values,omitempty"`
}

// Len is the number of values, or 0 when the domain is continuous.
func (d Domain) Len() int {
	switch d.Type {
	case CategoricalDomain:
		return len(d.Values)
	case BoolDomain:
		return 2
	case Pow2Domain:
		return int(math.Log2(*d.Max)) - d.pow2Floor() + 1
	case IntDomain:
		return int((*d.Max-*d.Min)/d.step()) + 1
	default:
		if d.Step == 0 {
			if *d.Min == *d.Max {
				return 1
			}
			return 0
		}
		// A range that is a whole number of steps keeps its upper end despite rounding.
		return int(math.Floor((*d.Max-*d.Min)/d.Step+1e-9)) + 1
	}
}

// At maps a position u in [0, 1) to a value: equal parts of the interval go to
// each value of a discrete domain, in order.
func (d Domain) At(u float64) Value {
	if n := d.Len(); n > 0 && !d.logInt() {
		return d.Nth(min(int(u*float64(n)), n-1))
	}
	lo, hi := *d.Min, *d.Max
	if d.Type == IntDomain {
		// Each integer owns the interval of one around it, so that both ends have their share.
		x := math.Exp(math.Log(lo-0.5) + u*(math.Log(hi+0.5)-math.Log(lo-0.5)))
		return Int(int64(math.Max(lo, math.Min(hi, math.Round(x)))))
	}
	x := lo + u*(hi-lo)
	if d.Log {
		x = math.Exp(math.Log(lo) + u*(math.Log(hi)-math.Log(lo)))
	}
	return Float(math.Max(lo, math.Min(hi, round(x, 5))))
}

// Position is the inverse of At: the middle of the interval that gives v, or
// NaN when v is not in the domain.
func (d Domain) Position(v Value) float64 {
	if n := d.Len(); n > 0 && !d.logInt() {
		i := d.index(v, n)
		if i < 0 {
			return math.NaN()
		}
		return (float64(i) + 0.5) / float64(n)
	}
	x, ok := v.Number()
	lo, hi := *d.Min, *d.Max
	if !ok || x < lo || x > hi {
		return math.NaN()
	}
	if d.Type == IntDomain {
		return (math.Log(x) - math.Log(lo-0.5)) / (math.Log(hi+0.5) - math.Log(lo-0.5))
	}
	if d.Log {
		return (math.Log(x) - math.Log(lo)) / (math.Log(hi) - math.Log(lo))
	}
	return (x - lo) / (hi - lo)
}

// Nth is the i-th value of a discrete domain, counted from 0 in order.
func (d Domain) Nth(i int) Value {
	switch d.Type {
	case CategoricalDomain:
		return d.Values[i]
	case BoolDomain:
		return Bool(i == 1)
	case Pow2Domain:
		return Int(int64(1) << (d.pow2Floor() + i))
	case IntDomain:
		return Int(int64(*d.Min) + int64(i)*int64(d.step()))
	default:
		// 0.7 + 3·0.05 is 0.8500000000000001 in binary; twelve digits give 0.85.
		return Float(round(*d.Min+float64(i)*d.Step, 12))
	}
}

func (d Domain) index(v Value, n int) int {
	if d.Type == CategoricalDomain {
		return slices.Index(d.Values, v)
	}
	if b, ok := v.Truth(); d.Type == BoolDomain {
		switch {
		case !ok:
			return -1
		case b:
			return 1
		default:
			return 0
		}
	}
	x, ok := v.Number()
	if !ok {
		return -1
	}
	i := 0
	switch {
	case d.Type == Pow2Domain:
		i = int(math.Round(math.Log2(x))) - d.pow2Floor()
	case d.step() > 0:
		i = int(math.Round((x - *d.Min) / d.step()))
	}
	if i < 0 || i >= n || d.Nth(i) != v {
		return -1
	}
	return i
}

func (d Domain) step() float64 {
	if d.Type == IntDomain && d.Step == 0 {
		return 1
	}
	return d.Step
}

func (d Domain) logInt() bool { return d.Type == IntDomain && d.Log }

func (d Domain) pow2Floor() int { return int(math.Ceil(math.Log2(*d.Min))) }

func round(x float64, digits int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	if err != nil {
		panic(fmt.Sprintf("experiment: round %v: %v", x, err)) // FormatFloat's own text always parses
	}
	return r
}

// Space is what is searched: role → parameter → domain.
type Space map[string]map[string]Domain

// Dim is one parameter of a Space.
type Dim struct {
	Role, Param string
	Domain
}

// Dims lists the parameters in sorted order; search algorithms see the space as
// the unit cube over them.
func (s Space) Dims() []Dim {
	var dims []Dim
	for _, role := range slices.Sorted(maps.Keys(s)) {
		for _, param := range slices.Sorted(maps.Keys(s[role])) {
			dims = append(dims, Dim{role, param, s[role][param]})
		}
	}
	return dims
}

// At gives the settings at a point of the unit cube; point[i] belongs to Dims()[i].
func (s Space) At(point []float64) Params {
	p := Params{}
	for i, d := range s.Dims() {
		if p[d.Role] == nil {
			p[d.Role] = map[string]Value{}
		}
		p[d.Role][d.Param] = d.At(point[i])
	}
	return p
}

// Size is the number of different settings, or 0 when it is infinite (a
// continuous parameter) or too large for an int.
func (s Space) Size() int {
	size := 1
	for _, d := range s.Dims() {
		n := d.Len()
		if n == 0 || size > math.MaxInt/n {
			return 0
		}
		size *= n
	}
	return size
}

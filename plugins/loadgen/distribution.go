// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// unknownKeys names the keys of a mapping that nobody knows.
func unknownKeys(object map[string]any, path string, known []string) (errs []error) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, key) {
			errs = append(errs, fmt.Errorf("%s%s: unknown key; known: %s", path, key, strings.Join(known, ", ")))
		}
	}
	return errs
}

func whole(object map[string]any, key string, least float64) (int, error) {
	v, given := object[key]
	if !given {
		return 0, fmt.Errorf("%s: is required", key)
	}
	if f, ok := number(v); ok && isWhole(f, least) {
		return int(f), nil
	}
	return 0, fmt.Errorf("%s: must be a whole number from %g to %g, is %v", key, least, maxTokens, v)
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// parseDistribution reads a number or a mapping.
func parseDistribution(path string, v any, u unit) (Length, []error) {
	if f, ok := number(v); ok {
		n, err := u.whole(path, f)
		return FixedLength(n), err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return Length{}, []error{fmt.Errorf("%s: must be a number or a distribution such as {type: normal, mean: 200, stdDev: 50}, is %v", path, v)}
	}
	shape, errs := parseShape(path, object)
	values, problems := parseValues(path, object, u)
	errs = append(errs, problems...)
	if len(errs) > 0 {
		return Length{}, errs
	}
	l := Length{Shape: shape}
	switch shape {
	case Fixed:
		return fixed(path, values, u)
	case Normal, Lognormal:
		l.Mean, l.StdDev = values["mean"], values["stdDev"]
	}
	l.Min, l.Max = int(math.Round(values["min"])), int(math.Round(values["max"]))
	if err := l.validate(u); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	return l, errs
}

// fixed is the mean, or what min and max agree on.
func fixed(path string, values map[string]float64, u unit) (Length, []error) {
	key := "mean"
	value, given := values[key]
	if low, ok := values["min"]; !given && ok && low == values["max"] {
		key, value, given = "min", low, true
	}
	if !given {
		return Length{}, []error{fmt.Errorf("%s.mean: is required for the type fixed", path)}
	}
	n, err := u.whole(path+"."+key, value/u.scale)
	return FixedLength(n), err
}

// shapeKeys are those that a distribution cannot be without.
var shapeKeys = map[Shape][]string{
	Fixed: nil, Normal: {"mean", "stdDev"}, Lognormal: {"mean", "stdDev"}, Uniform: {"min", "max"},
}

func parseShape(path string, object map[string]any) (Shape, []error) {
	errs := unknownKeys(object, path+".", []string{"type", "min", "max", "mean", "stdDev"})
	name, _ := object["type"].(string)
	needed, known := shapeKeys[Shape(name)]
	if !known {
		return "", append(errs, fmt.Errorf("%s.type: must be %s, is %v", path, shapes, object["type"]))
	}
	for _, key := range needed {
		if _, given := object[key]; !given {
			errs = append(errs, fmt.Errorf("%s.%s: is required for the type %s", path, key, name))
		}
	}
	return Shape(name), errs
}

// parseValues reads the numbers of a distribution.
func parseValues(path string, object map[string]any, u unit) (map[string]float64, []error) {
	values := map[string]float64{}
	var errs []error
	for _, key := range []string{"min", "max", "mean", "stdDev"} {
		v, given := object[key]
		if !given {
			continue
		}
		f, ok := number(v)
		if !ok || !(f >= 0 && f*u.scale <= maxTokens) { // NaN too
			errs = append(errs, fmt.Errorf("%s.%s: must be a number from 0 to %g, is %v", path, key, maxTokens/u.scale, v))
			continue
		}
		values[key] = f * u.scale
	}
	return values, errs
}

// whole is a number as a user writes it, in this unit and rounded.
func (u unit) whole(path string, f float64) (int, []error) {
	n := math.Round(f * u.scale)
	if !(n >= u.least && n <= maxTokens) { // NaN too
		return 0, []error{fmt.Errorf("%s: must be from %g to %g, is %g", path, u.least/u.scale, maxTokens/u.scale, f)}
	}
	return int(n), nil
}

// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValuesPrintAsOnACommandLine(t *testing.T) {
	for want, v := range map[string]Value{
		"1048576":          Float(1.048576e+06),
		"256":              Float(256.0),
		"0.9":              Float(0.9),
		"0.00001":          Float(1e-5),
		"-1":               Int(-1),
		"true":             Bool(true),
		"fp8":              String("fp8"),
		"9007199254740993": Int(9007199254740993),
	} {
		assert.Equal(t, want, v.String())
	}
}

func TestEqualNumbersAreOneValueHoweverTheyWereRead(t *testing.T) {
	var fromJSON Value
	require.NoError(t, json.Unmarshal([]byte("256.0"), &fromJSON))
	assert.Equal(t, Int(256), fromJSON)
	assert.Equal(t, Int(256), Float(256))
	assert.NotEqual(t, Int(1), Bool(true))
	assert.NotEqual(t, String("1"), Int(1))
}

func TestParamsSurviveJSON(t *testing.T) {
	p := Params{"default": {"a": Int(9007199254740993), "b": Float(0.05), "c": String("on"), "d": Bool(false)}, "prefill": {"tp": Int(2)}}
	data, err := json.Marshal(p)
	require.NoError(t, err)
	var back Params
	require.NoError(t, json.Unmarshal(data, &back))
	assert.Equal(t, p, back)
	assert.Equal(t, p.Key(), back.Key())
	assert.Equal(t, "a=9007199254740993 b=0.05 c=on d=false prefill.tp=2", p.String())
}

func TestKeysTellTextFromNumbers(t *testing.T) {
	a := Params{"default": {"x": String("1")}}
	b := Params{"default": {"x": Int(1)}}
	assert.NotEqual(t, a.Key(), b.Key())
}

func f64(f float64) *float64 { return &f }

func domain(kind DomainType, lo, hi, step float64) Domain {
	return Domain{Type: kind, Min: f64(lo), Max: f64(hi), Step: step}
}

func texts(d Domain) []string {
	var all []string
	for i := range d.Len() {
		all = append(all, d.Nth(i).String())
	}
	return all
}

func TestDiscreteDomainsHoldBothEnds(t *testing.T) {
	for name, c := range map[string]struct {
		domain Domain
		want   []string
	}{
		"stepped float":               {domain(FloatDomain, 0.70, 0.95, 0.05), []string{"0.7", "0.75", "0.8", "0.85", "0.9", "0.95"}},
		"step that misses the end":    {domain(FloatDomain, 0, 1, 0.3), []string{"0", "0.3", "0.6", "0.9"}},
		"int":                         {domain(IntDomain, -1, 2, 0), []string{"-1", "0", "1", "2"}},
		"stepped int":                 {domain(IntDomain, 64, 256, 64), []string{"64", "128", "192", "256"}},
		"pow2":                        {domain(Pow2Domain, 256, 2048, 0), []string{"256", "512", "1024", "2048"}},
		"pow2 between powers":         {domain(Pow2Domain, 100, 1000, 0), []string{"128", "256", "512"}},
		"bool":                        {Domain{Type: BoolDomain}, []string{"false", "true"}},
		"categorical":                 {Domain{Type: CategoricalDomain, Values: []Value{String("lpm"), Int(2)}}, []string{"lpm", "2"}},
		"float with one value":        {domain(FloatDomain, 0.9, 0.9, 0), []string{"0.9"}},
		"tenths stay tenths":          {domain(FloatDomain, 0.1, 0.3, 0.1), []string{"0.1", "0.2", "0.3"}},
		"integral steps are integers": {domain(FloatDomain, 1, 3, 1), []string{"1", "2", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, texts(c.domain))
			for i := range c.domain.Len() {
				v := c.domain.Nth(i)
				assert.Equal(t, v, c.domain.At(c.domain.Position(v)))
			}
			assert.Equal(t, c.want[0], c.domain.At(0).String())
			assert.Equal(t, c.want[len(c.want)-1], c.domain.At(math.Nextafter(1, 0)).String())
		})
	}
}

func TestContinuousDomainsKeepTheirEndsAndPositions(t *testing.T) {
	for name, d := range map[string]Domain{
		"linear":  domain(FloatDomain, 0.5, 0.95, 0),
		"log":     {Type: FloatDomain, Min: f64(0.001), Max: f64(10), Log: true},
		"log int": {Type: IntDomain, Min: f64(1), Max: f64(4096), Log: true},
	} {
		t.Run(name, func(t *testing.T) {
			lo, _ := d.At(0).Number()
			hi, _ := d.At(math.Nextafter(1, 0)).Number()
			assert.Equal(t, *d.Min, lo)
			assert.InDelta(t, *d.Max, hi, 1e-4)
			for u := 0.0; u < 1; u += 0.01 {
				v := d.At(u)
				x, ok := v.Number()
				require.True(t, ok)
				require.GreaterOrEqual(t, x, *d.Min)
				require.LessOrEqual(t, x, *d.Max)
				require.Equal(t, v, d.At(d.Position(v)), "At(Position(v)) for u=%v", u)
			}
		})
	}
}

func TestPositionOfAForeignValueIsNaN(t *testing.T) {
	assert.True(t, math.IsNaN(domain(IntDomain, 1, 4, 0).Position(Int(5))))
	assert.True(t, math.IsNaN(domain(Pow2Domain, 1, 8, 0).Position(Int(3))))
	assert.True(t, math.IsNaN(domain(FloatDomain, 0, 1, 0).Position(String("x"))))
	assert.True(t, math.IsNaN(Domain{Type: CategoricalDomain, Values: []Value{Int(1)}}.Position(Int(2))))
	assert.True(t, math.IsNaN(Domain{Type: BoolDomain}.Position(Int(1))))
}

func TestSpaceSizeIsZeroWhenInfinite(t *testing.T) {
	finite := Space{"default": {"a": domain(IntDomain, 1, 3, 0), "b": Domain{Type: BoolDomain}}}
	assert.Equal(t, 6, finite.Size())
	assert.Equal(t, Params{"default": {"a": Int(1), "b": Bool(true)}}, finite.At([]float64{0, 0.9}))
	finite["default"]["c"] = domain(FloatDomain, 0, 1, 0)
	assert.Equal(t, 0, finite.Size())
}

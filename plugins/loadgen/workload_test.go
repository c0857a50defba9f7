// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWorkloadsAreParsed(t *testing.T) {
	tests := map[string]struct {
		want Workload
		text string
	}{
		"fixed(512,256)":                     {Workload{FixedLength(512), FixedLength(256)}, "fixed(512,256)"},
		" fixed ( 1 , 1 ) ":                  {Workload{FixedLength(1), FixedLength(1)}, "fixed(1,1)"},
		"normal(480,240/300,150)":            {Workload{NormalLength(480, 240), NormalLength(300, 150)}, "normal(480,240/300,150)"},
		"normal( 480.5 , 0 / 1e3 , 1.25 )":   {Workload{NormalLength(480.5, 0), NormalLength(1000, 1.25)}, "normal(480.5,0/1000,1.25)"},
		"uniform(100,500/200,800)":           {Workload{UniformLength(100, 500), UniformLength(200, 800)}, "uniform(100,500/200,800)"},
		"lognormal(480,240/300.5,0)":         {Workload{LognormalLength(480, 240), LognormalLength(300.5, 0)}, "lognormal(480,240/300.5,0)"},
		"uniform(7,7/8,8)":                   {Workload{UniformLength(7, 7), UniformLength(8, 8)}, "uniform(7,7/8,8)"},
		"normal(100000000,0/1,100000000)":    {Workload{NormalLength(1e8, 0), NormalLength(1, 1e8)}, "normal(100000000,0/1,100000000)"},
		"uniform(1,100000000/1,\t100000000)": {Workload{UniformLength(1, 1e8), UniformLength(1, 1e8)}, "uniform(1,100000000/1,100000000)"},
	}
	for in, tt := range tests {
		t.Run(in, func(t *testing.T) {
			w, err := ParseWorkload(in)
			require.NoError(t, err)
			assert.Equal(t, tt.want, w)
			assert.Equal(t, tt.text, w.String())
		})
	}
}

func TestAWorkloadErrorSaysWhatIsWrong(t *testing.T) {
	tests := map[string]string{
		"":                          "want fixed(in,out), normal(mean,sd/mean,sd), lognormal(mean,sd/mean,sd) or uniform(min,max/min,max)",
		"512,256":                   "want fixed(in,out), normal(mean,sd/mean,sd), lognormal(mean,sd/mean,sd) or uniform(min,max/min,max)",
		"fixed(512,256":             "the closing parenthesis is missing",
		"fixed(512,256)x":           `unexpected "x" after the closing parenthesis`,
		"poisson(1,2)":              `unknown distribution "poisson": must be fixed, normal, lognormal or uniform`,
		"Fixed(1,2)":                `unknown distribution "Fixed": must be fixed, normal, lognormal or uniform`,
		"normal(512)":               "the output part is missing: input and output are separated by a slash",
		"normal(512,256/2048)":      `output: want two numbers mean,sd, have "2048"`,
		"normal(512,x/1,1)":         `input: "x" is not a number`,
		"normal(512,NaN/1,1)":       "input: the standard deviation must be from 0 to 1e+08, is NaN",
		"lognormal(0,1/1,1)":        "input: the mean must be from 1 to 1e+08, is 0",
		"lognormal(5/1,1)":          `input: want two numbers mean,sd, have "5"`,
		"normal(0,1/1,1)":           "input: the mean must be from 1 to 1e+08, is 0",
		"normal(1,1/Inf,-1)":        "output: the mean must be from 1 to 1e+08, is +Inf\nthe standard deviation must be from 0 to 1e+08, is -1",
		"fixed(512)":                `want two numbers in,out, have "512"`,
		"fixed(512,)":               `want two numbers in,out, have "512,"`,
		"fixed(1,2,3)":              `want two numbers in,out, have "1,2,3"`,
		"fixed(1.5,2)":              `"1.5" is not a whole number`,
		"fixed(0,2)":                "input: the tokens must be from 1 to 1e+08, is 0",
		"uniform(5,4/1,2)":          "input: the largest length 4 is below the smallest, 5",
		"uniform(0,4/1,2)":          "input: the smallest length must be from 1 to 1e+08, is 0",
		"uniform(1,4/1,9999999999)": "output: the largest length must be from 1 to 1e+08, is 9.999999999e+09",
	}
	for in, want := range tests {
		t.Run(in, func(t *testing.T) {
			_, err := ParseWorkload(in)
			assert.EqualError(t, err, "workload \""+in+"\": "+want)
		})
	}
}

func TestMixedWorkloadsHaveAName(t *testing.T) {
	assert.Equal(t, "input fixed(8), output uniform(1,2)", Workload{FixedLength(8), UniformLength(1, 2)}.String())
}

func TestLengthsAreDrawnFromTheirDistribution(t *testing.T) {
	tests := map[string]struct {
		length          Length
		lowest, highest int
		mean, stdDev    float64
	}{
		"fixed":                       {FixedLength(512), 512, 512, 512, 0},
		"uniform":                     {UniformLength(10, 19), 10, 19, 14.5, math.Sqrt(99.0 / 12)},
		"normal":                      {NormalLength(1000, 100), 500, 1300, 1000, 99},
		"normal cut at 1":             {NormalLength(1, 1), 1, 4, 1.757, 0.696}, // half-normal, rounded
		"normal without deviation":    {NormalLength(7.5, 0), 8, 8, 8, 0},
		"lognormal":                   {LognormalLength(1000, 100), 500, 1300, 998.8, 97.8},
		"lognormal without deviation": {LognormalLength(7.5, 0), 8, 8, 8, 0},
		// Limits so wide that the moments are the untruncated ones: mean 1000 and standard deviation 500.
		"lognormal, limits of its own": {Length{Shape: Lognormal, Mean: 1000, StdDev: 500, Min: 1, Max: 1e6}, 1, 1e6, 1000, 500},
		"normal, limits off the mean":  {Length{Shape: Normal, Mean: 10, StdDev: 1, Min: 90, Max: 99}, 90, 99, 90, 0},
		"normal, wide, cut at both":    {NormalLength(100, 100), 1, 400, 128.65, 78.3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			const n = 20_000
			r := random(1, 2)
			lowest, highest, sum, squares := math.MaxInt, 0, 0.0, 0.0
			for range n {
				v := tt.length.Draw(r)
				lowest, highest = min(lowest, v), max(highest, v)
				sum, squares = sum+float64(v), squares+float64(v)*float64(v)
			}
			assert.GreaterOrEqual(t, lowest, tt.lowest)
			assert.LessOrEqual(t, highest, tt.highest)
			assert.Equal(t, tt.highest, tt.length.Longest())
			mean := sum / n
			assert.InDelta(t, tt.mean, mean, 0.02*tt.mean)
			assert.InDelta(t, tt.stdDev, math.Sqrt(max(0, squares/n-mean*mean)), 0.03*tt.stdDev+1e-4)
		})
	}
}

func TestBothEndsOfARangeAreDrawn(t *testing.T) {
	seen := map[int]bool{}
	r := random(1, 1)
	for range 1000 {
		seen[UniformLength(1, 3).Draw(r)] = true
	}
	assert.Equal(t, map[int]bool{1: true, 2: true, 3: true}, seen)
}

func FuzzParseWorkload(f *testing.F) {
	for _, in := range []string{"fixed(512,256)", "normal(480,240/300,150)", "uniform(100,500/200,800)", "normal(512,256/2048", "fixed(1e3,1)",
		"lognormal(480,240/300,150)", "lognormal(1,100000000/1,0)", " fixed ( 1 , 1 ) ", "normal( 480.5 , 0 / 1e3 , 1.25 )", "uniform(1,100000000/1,\t100000000)",
		"normal(512,NaN/1,1)", "normal(1,1/Inf,-1)", "fixed(512,256)x", "fixed(1,2,3)", "uniform(5,4/1,2)", "uniform(1,4/1,9999999999)", ""} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		w, err := ParseWorkload(in)
		if err != nil {
			return
		}
		again, err := ParseWorkload(w.String())
		require.NoError(t, err)
		require.Equal(t, w, again)
		r := random(1, 1)
		require.LessOrEqual(t, w.Input.Draw(r), w.Input.Longest())
		require.Positive(t, w.Output.Draw(r))
	})
}

// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/llmctl/llmctl/experiment"
)

// Params shows the settings of a trial.
func Params(p experiment.Params) string {
	if len(p) == 0 {
		return "template unchanged"
	}
	return p.String()
}

// Number shows a figure with four significant digits, or <none>.
func Number(v *float64) string {
	switch {
	case v == nil:
		return none
	case *v >= 1000:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(*v, 'g', 4, 64)
	}
}

// margin shows how far off a figure may be; "" when that is not known.
func margin(v *float64) string {
	if v == nil {
		return ""
	}
	return "±" + Number(v)
}

// Gain shows a relative improvement as a percentage with its sign, or <none>.
func Gain(gain *float64) string {
	if gain == nil {
		return none
	}
	return fmt.Sprintf("%+.1f%%", *gain*100)
}

func age(t, now time.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(t))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func TestEveryMetricIsExplained(t *testing.T) {
	page, err := os.ReadFile("../doc/metrics.md")
	require.NoError(t, err)
	point := regexp.MustCompile(`(Mean|P50|P90|P95|P99)$`)
	for _, name := range experiment.MetricNames() {
		assert.Contains(t, string(page), "`"+point.ReplaceAllString(name, "")+"`", name)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build node && !linux

package node

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(*testing.M) {
	fmt.Fprintln(os.Stderr, "the tests on a real node are left out: they need Linux")
}

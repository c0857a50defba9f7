// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package simulator

import (
	"context"
	"time"
)

// sleepUntil waits until t or until ctx is done.
func sleepUntil(ctx context.Context, t time.Time) {
	if pause(ctx, time.Until(t)) != nil {
		return // the caller looks at ctx itself
	}
}

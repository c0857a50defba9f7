// SPDX-License-Identifier: Apache-2.0

// Package simulatortest runs simulated engines for tests.
package simulatortest

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/plugins/simulator"
)

// Start runs a simulated engine until the test ends. The test fails when the
// engine does not end well.
func Start(t testing.TB, config simulator.Config, options simulator.Options) (url string) {
	t.Helper()
	server, err := simulator.New(config, options)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return "http://" + listener.Addr().String()
}

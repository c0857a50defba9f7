// SPDX-License-Identifier: Apache-2.0

// Command up starts the test bed for a developer and keeps it until Ctrl-C. The
// path of its kubeconfig is the one line on stdout. With the argument "build" it
// only builds what beds need.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/llmctl/llmctl/test/bed"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, len(os.Args) > 1 && os.Args[1] == "build"); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, buildOnly bool) error {
	if buildOnly {
		return bed.Prepare(ctx, os.Stderr)
	}
	b, err := bed.Start(ctx, bed.Config{Log: os.Stderr})
	if err != nil {
		return err
	}
	fmt.Println(b.Kubeconfig)
	fmt.Fprintf(os.Stderr, "the test bed is up:\n  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get nodes\nstop it with Ctrl-C\n", b.Kubeconfig, b.Bin)
	<-ctx.Done()
	return b.Stop()
}

// SPDX-License-Identifier: Apache-2.0

// Command llmctl finds the fastest way to serve an LLM that keeps a
// service-level agreement. As kubectl-llmctl it is a kubectl plugin.
package main

import (
	"os"

	"github.com/llmctl/llmctl/cmd"
)

func main() { os.Exit(cmd.Main()) }

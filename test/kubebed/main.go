// SPDX-License-Identifier: Apache-2.0

// Command kubebed is a whole Kubernetes control plane in one static binary: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kwok, kubelet and kubectl. The
// name that it is called by (a symbolic link) says which of them it is, as with
// busybox: the components share most of their code, so one binary is a quarter of
// the size of seven and builds in half the time.
//
// It is a module of its own because k8s.io/kubernetes needs thirty replace
// directives, which the main module must not have.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

func main() { os.Exit(run(filepath.Base(os.Args[0]), os.Args)) }

// run is the named component; args are those of the process.
func run(name string, args []string) int {
	components := map[string]func() int{
		"etcd": func() int { etcdmain.Main(args); return 0 },
		"kube-apiserver": func() int {
			return cli.Run(apiserver.NewAPIServerCommand())
		},
		"kube-controller-manager": func() int {
			return cli.Run(controllers.NewControllerManagerCommand())
		},
		"kube-scheduler": func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
		"kubelet":        func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":        runKubectl,
		"kwok":           runKwok,
	}
	component, ok := components[name]
	if !ok {
		names := make([]string, 0, len(components))
		for name := range components {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "kubebed: called as %q; call it by a link named %s\n", name, strings.Join(names, ", "))
		return 2
	}
	return component()
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // ends the process with kubectl's own exit codes
	}
	return 0
}

// runKwok reads kwok's configuration before its command is made, as kwok's own
// main does: the flags' defaults come from there.
func runKwok() int {
	// Kubernetes has put a --version flag there that kwok's own clashes with.
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	global := pflag.NewFlagSet("global", pflag.ContinueOnError)
	global.ParseErrorsAllowlist.UnknownFlags = true
	global.Usage = func() {}
	command, ctx, err := kwokCommand(signals.SetupSignalContext(), global)
	if err == nil {
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		return 1
	}
	return 0
}

func kwokCommand(ctx context.Context, global *pflag.FlagSet) (*cobra.Command, context.Context, error) {
	ctx, _ = kwoklog.InitFlags(ctx, global)
	ctx, err := kwokconfig.InitFlags(ctx, global)
	if err != nil {
		return nil, nil, err
	}
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(global)
	return command, ctx, nil
}

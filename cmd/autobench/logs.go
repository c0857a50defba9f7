// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/state"
)

type logsOptions struct {
	*options
	trial  string
	pod    bool
	follow bool
}

func logsCommand(o *options) *cobra.Command {
	l := &logsOptions{options: o}
	c := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the log of an experiment, a trial's load or a trial's engine",
		Example: templates.Examples(`
			# All that the run said so far, and what it goes on to say
			llmctl autobench logs chat -f

			# The load of trial 3 of template small, then its engine
			llmctl autobench logs chat --trial small/3
			llmctl autobench logs chat --trial small/3 --pod`),
		Args:              oneName,
		ValidArgsFunction: o.completeNames,
		RunE:              func(c *cobra.Command, args []string) error { return l.run(c.Context(), args[0]) },
	}
	c.Flags().StringVar(&l.trial, "trial", "", "Print the load's log of this trial, TEMPLATE/INDEX")
	c.Flags().BoolVar(&l.pod, "pod", false, "With --trial: print the logs of the trial's workload instead")
	c.Flags().BoolVarP(&l.follow, "follow", "f", false, "Go on printing until the run ends")
	return c
}

func (l *logsOptions) run(ctx context.Context, name string) error {
	if l.pod && l.trial == "" {
		return Usagef("--pod goes with --trial")
	}
	dir, err := l.open(name)
	if err != nil {
		return err
	}
	files := []string{dir.LogFile()}
	if l.trial != "" {
		if files, err = l.trialFiles(dir); err != nil {
			return err
		}
	}
	for _, file := range files {
		if len(files) > 1 {
			fmt.Fprintf(l.Out, "==> %s <==\n", filepath.Base(file))
		}
		if err := l.print(ctx, dir, file); err != nil {
			return err
		}
	}
	return nil
}

func (l *logsOptions) trialFiles(dir *state.Dir) ([]string, error) {
	template, number, ok := strings.Cut(l.trial, "/")
	index, err := strconv.Atoi(number)
	if !ok || err != nil || index < 0 {
		return nil, Usagef("--trial must be TEMPLATE/INDEX, such as small/3, is %q", l.trial)
	}
	trial := dir.Trial(template, index)
	if _, err := os.Stat(trial.Path()); err != nil {
		return nil, fmt.Errorf("experiment %q has no trial %s; see 'llmctl autobench status %s'", dir.Name(), l.trial, dir.Name())
	}
	if !l.pod {
		return []string{trial.BenchmarkLogFile()}, nil
	}
	files, err := filepath.Glob(filepath.Join(trial.LogDir(), "*"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("trial %s has no workload logs: its workload was never created", l.trial)
	}
	return files, err
}

// print copies a file and, when following, what is added to it while the run lives.
func (l *logsOptions) print(ctx context.Context, dir *state.Dir, file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: the trial ended before it was written", filepath.Base(file))
	} else if err != nil {
		return err
	}
	defer f.Close()
	for {
		running := dir.Locked() // asked before reading, so that the last words are read too
		if _, err := io.Copy(l.Out, f); err != nil {
			return err
		}
		if !l.follow || !running {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval / 5):
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// savingRoot makes the test binary a process that saves for ever.
const savingRoot = "LLMCTL_TEST_SAVE_FOREVER"

func TestMain(m *testing.M) {
	if root := os.Getenv(savingRoot); root != "" {
		fmt.Println("error", saveForever(Root(root), os.Args[len(os.Args)-1]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// saveForever adds one trial after the other and says "saved N" once N are safe.
func saveForever(root Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := d.Lock(); err != nil {
		return err
	}
	d.Warn = func(note string) { fmt.Println("note", note) }
	st, err := d.Load("small")
	if err != nil {
		return err
	}
	for {
		fmt.Println("saved", len(st.Trials))
		st.Trials = append(st.Trials, trial("small", len(st.Trials)))
		if err := d.Save(st); err != nil {
			return err
		}
		if err := d.WriteResult(&experiment.Result{Templates: []experiment.TemplateState{st}}); err != nil {
			return err
		}
	}
}

func TestAKilledWriterLosesNothingItHasSaved(t *testing.T) {
	const kills, trials = 100, 40
	root := Root(t.TempDir())
	random := rand.New(rand.NewPCG(1, 2))
	var d *Dir
	checkpointed := false
	for kill := range kills {
		if d == nil || len(files(t, d.Path())) > trials {
			d = begin(t, root, fmt.Sprintf("run-%d", kill))
			require.NoError(t, d.Unlock())
			checkpointed = false
		}
		saved := runAndKill(t, root, d.Name(), time.Duration(random.IntN(12_000))*time.Microsecond)

		require.NoError(t, d.Lock(), "a killed process holds no lock")
		var notes []string
		d.Warn = func(note string) { notes = append(notes, note) }
		got, err := d.Load("small")
		require.NoError(t, err)
		require.Contains(t, []int{saved, saved + 1}, len(got.Trials), "trials after %d were safe", saved)
		require.Equal(t, small(len(got.Trials)).Trials, got.Trials)
		// Before the first checkpoint there may be records only; after it, never less than a whole one.
		_, err = os.Stat(d.CheckpointFile("small"))
		checkpointed = checkpointed || err == nil
		if checkpointed {
			require.Empty(t, notes)
		}
		for _, path := range files(t, d.Path()) {
			require.NotContains(t, path, "/.", "left over")
		}
		if result, err := d.Result(); err == nil {
			assert.True(t, json.Valid(result))
		}
		require.NoError(t, d.Unlock())
	}
}

// runAndKill starts a writer, kills it some time after it began to save, and
// returns how many trials it had said to be safe.
func runAndKill(t *testing.T, root Root, name string, after time.Duration) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], name)
	cmd.Env = append(os.Environ(), savingRoot+"="+string(root))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	saved := -1
	for lines := bufio.NewScanner(out); lines.Scan(); {
		require.False(t, strings.HasPrefix(lines.Text(), "error"), lines.Text())
		if saved < 0 {
			timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it cannot have ended by itself
			defer timer.Stop()
		}
		n := 0
		if _, err := fmt.Sscanf(lines.Text(), "saved %d", &n); err == nil {
			saved = n
		}
	}
	require.EqualError(t, cmd.Wait(), "signal: killed")
	require.GreaterOrEqual(t, saved, 0)
	return saved
}

// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// configurable are the flags that the environment (LLMCTL_STATE_DIR, …) and the
// configuration file may set. Flags go before the environment, and that before the file.
var configurable = []string{"state-dir", "engine-dir", "kubeconfig", "context", "namespace"}

// configure fills in flags that were not given.
func configure(flags *pflag.FlagSet, getenv func(string) string, configDir func() (string, error)) error {
	v := viper.New()
	if path, err := configFile(getenv, configDir); err == nil {
		v.SetConfigFile(path)
		v.SetConfigType("yaml")
		if err := v.ReadInConfig(); err != nil && !isNotExist(err) {
			return fmt.Errorf("read configuration %s: %w", path, err)
		}
		for _, key := range v.AllKeys() {
			if !slices.Contains(configurable, key) {
				return fmt.Errorf("configuration %s: unknown key %s; known: %s", path, key, strings.Join(configurable, ", "))
			}
		}
	}
	for _, name := range configurable {
		flag := flags.Lookup(name)
		value := getenv("LLMCTL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		if value == "" {
			value = v.GetString(name)
		}
		if flag == nil || flag.Changed || value == "" {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("setting --%s from the environment or configuration: %w", name, err)
		}
	}
	return nil
}

// configFile is $LLMCTL_CONFIG, or llmctl/config.yaml in the user's configuration directory.
func configFile(getenv func(string) string, configDir func() (string, error)) (string, error) {
	if path := getenv("LLMCTL_CONFIG"); path != "" {
		return path, nil
	}
	dir, err := configDir()
	return filepath.Join(dir, "llmctl", "config.yaml"), err
}

func isNotExist(err error) bool {
	var missing viper.ConfigFileNotFoundError
	return errors.As(err, &missing) || errors.Is(err, fs.ErrNotExist)
}

// SPDX-License-Identifier: Apache-2.0

//go:build node && linux

package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// image is the one that the pods run. Nothing serves it: it is imported.
const image = "docker.io/llmctl/node-test:1"

// writeImage writes an image, as docker save does, that holds nothing but a
// static llmctl binary. Without a command it waits for ever, which serves as the
// sandbox of every pod.
func writeImage(path, llmctl string) error {
	binary, err := os.ReadFile(llmctl)
	if err != nil {
		return err
	}
	layer, err := archive(file{"bin/llmctl", binary, 0o755}, file{"tmp/.keep", nil, 0o644})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "Entrypoint": []string{"llmctl", "simulate", "pause", "--fault-never-ready"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": digest(config) + ".json", "RepoTags": []string{image}, "Layers": []string{digest(layer) + ".tar"},
	}})
	if err != nil {
		return err
	}
	data, err := archive(
		file{digest(config) + ".json", config, 0o644}, file{digest(layer) + ".tar", layer, 0o644}, file{"manifest.json", manifest, 0o644})
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

type file struct {
	name string
	data []byte
	mode int64
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return out.Bytes(), w.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

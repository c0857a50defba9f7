// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const loopback = "127.0.0.1"

// Servers get ports below the range from which systems take the ports of
// outgoing connections, so that one cannot be taken between the moment that it
// is found free and the moment that its server listens.
const firstPort, lastPort = 12000, 32000

// ports gives out loopback ports, each only once.
type ports struct {
	mu    sync.Mutex
	given map[int]bool
}

func (p *ports) free() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given == nil {
		p.given = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if p.given[port] {
			continue
		}
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		p.given[port] = true
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("give back port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, errors.New("find a free port: none in 1000 tries")
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// SPDX-License-Identifier: Apache-2.0

// Package rxtime tells when the data that was read from a TCP connection had reached this host. The
// kernel notes that time for every packet, however late the program gets to read it. So a program that is
// busy, or waits for a processor, still measures its peer and not itself. What several packets brought is read
// at once, with the time of the latest of them.
//
// It is known on Linux on amd64 and arm64, by the socket option SO_TIMESTAMPNS.
package rxtime

import (
	"net"
	"sync/atomic"
	"time"
)

// Conn is a TCP connection that knows when the data of its latest Read came. Make one with Wrap.
type Conn struct {
	*net.TCPConn
	received atomic.Int64 // Unix time in ns; 0: not known
	receiver
}

// Age is how long ago the data that Read returned last reached this host; 0 where that is not known. It is
// taken from the wall clock: a step of that clock since then is in it.
func (c *Conn) Age() time.Duration {
	at := c.received.Load()
	if at == 0 {
		return 0
	}
	return max(time.Duration(time.Now().UnixNano()-at), 0)
}

// From finds the Conn of a connection that may have TLS around it; nil: there is none.
func From(c net.Conn) *Conn {
	for {
		switch inner := c.(type) {
		case *Conn:
			return inner
		case interface{ NetConn() net.Conn }: // *tls.Conn
			c = inner.NetConn()
		default:
			return nil
		}
	}
}

// Listen wraps the connections that l accepts.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package rxtime

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// receiver reads with the kernel's time stamps. Its fields are those of the Read that runs.
type receiver struct {
	mu      sync.Mutex
	raw     syscall.RawConn
	recv    func(fd uintptr) bool
	data    []byte
	control [64]byte
	n       int
	err     error
}

// Wrap returns a *Conn around a TCP connection; the connection itself where it is none, or where the
// kernel does not take the times.
func Wrap(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	if err != nil || refused != nil {
		return c
	}
	wrapped := &Conn{TCPConn: tcp}
	wrapped.raw, wrapped.recv = raw, wrapped.receive
	return wrapped
}

// Read reads as net.TCPConn does.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data = p
	err := c.raw.Read(c.recv)
	c.data = nil
	switch {
	case err != nil: // closed, or beyond its deadline
		var op *net.OpError
		if errors.As(err, &op) {
			op.Op = "read"
		}
		return 0, err
	case c.err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("recvmsg", c.err)}
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// receive reads once; false: there is nothing yet.
func (c *Conn) receive(fd uintptr) bool {
	for {
		n, controls, _, _, err := syscall.Recvmsg(int(fd), c.data, c.control[:], 0)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return false
		}
		c.n, c.err = n, err
		if err == nil && n > 0 {
			c.received.Store(timestamp(c.control[:controls]))
		}
		return true
	}
}

// timestamp is the time in a control message, which is the only one that was asked for: its header, of
// which the last two words of 32 bits are level and type, then seconds and nanoseconds. 0: there is none.
func timestamp(control []byte) int64 {
	head := syscall.CmsgLen(0)
	if len(control) < syscall.CmsgLen(16) ||
		binary.NativeEndian.Uint32(control[head-8:]) != syscall.SOL_SOCKET || binary.NativeEndian.Uint32(control[head-4:]) != syscall.SCM_TIMESTAMPNS {
		return 0
	}
	seconds, nanos := binary.NativeEndian.Uint64(control[head:]), binary.NativeEndian.Uint64(control[head+8:])
	return int64(seconds)*1e9 + int64(nanos)
}

// SPDX-License-Identifier: Apache-2.0

package rxtime

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pair is a connection and its peer.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	far, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	near, err = Listen(l).Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close() })
	return near, far
}

// The time is that of the packet, not of the Read: it lies between two readings of the clock around the
// sending, both before the Read. The kernel begins to take times shortly after the first socket asks for them.
func TestTheTimeIsThatOfThePacket(t *testing.T) {
	near, far := pair(t)
	c := From(near)
	if c == nil {
		t.Skipf("the times of packets are not known on %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	assert.Zero(t, c.Age(), "nothing was read yet")
	buf := make([]byte, 3)
	known := 0
	for tries := 0; known < 3 && tries < 100; tries++ {
		before := time.Now()
		_, err := io.WriteString(far, "abc")
		require.NoError(t, err)
		after := time.Now() // on the loopback device a packet has arrived when Write returns
		<-time.After(20 * time.Millisecond)
		_, err = io.ReadFull(near, buf)
		require.NoError(t, err)
		if c.received.Load() == 0 {
			assert.Zero(t, c.Age())
			continue
		}
		known++
		at := time.Unix(0, c.received.Load())
		assert.False(t, at.Before(before.Round(0)), "%v, sent at %v", at, before)
		assert.False(t, at.After(after.Round(0)), "%v, written at %v", at, after)
		assert.GreaterOrEqual(t, c.Age(), 20*time.Millisecond)
	}
	if known == 0 {
		t.Skip("the kernel takes no times of packets")
	}
}

func TestReadsEndAsThoseOfTCPDo(t *testing.T) {
	near, far := pair(t)
	n, err := near.Read(nil)
	assert.NoError(t, err)
	assert.Zero(t, n)

	require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
	_, err = near.Read(make([]byte, 1))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.True(t, op.Timeout())
	assert.Equal(t, "read", op.Op)
	require.NoError(t, near.SetReadDeadline(time.Time{}))

	_, err = io.WriteString(far, "last words")
	require.NoError(t, err)
	require.NoError(t, far.Close())
	text, err := io.ReadAll(near)
	assert.NoError(t, err)
	assert.Equal(t, "last words", string(text))

	require.NoError(t, near.Close())
	_, err = near.Read(make([]byte, 1))
	assert.ErrorIs(t, err, net.ErrClosed)
}

// A server half-closes a connection whose request it has not read, so that its answer arrives.
func TestAConnectionCanBeHalfClosed(t *testing.T) {
	near, far := pair(t)
	require.NoError(t, near.(interface{ CloseWrite() error }).CloseWrite())
	_, err := far.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(far, "x")
	require.NoError(t, err)
	_, err = near.Read(make([]byte, 1))
	assert.NoError(t, err)
}

func TestAResetIsAnError(t *testing.T) {
	near, far := pair(t)
	require.NoError(t, far.(*net.TCPConn).SetLinger(0))
	require.NoError(t, far.Close())
	_, err := near.Read(make([]byte, 1))
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "read", op.Op)
	assert.Contains(t, err.Error(), "connection reset by peer")
	assert.False(t, errors.Is(err, io.EOF))
}

func TestCloseEndsAReadThatWaits(t *testing.T) {
	near, _ := pair(t)
	done := make(chan error)
	go func() {
		_, err := near.Read(make([]byte, 1))
		done <- err
	}()
	require.NoError(t, near.Close())
	assert.ErrorIs(t, <-done, net.ErrClosed)
}

func TestTheConnectionIsFoundBehindTLS(t *testing.T) {
	near, _ := pair(t)
	if _, ok := near.(*Conn); ok {
		assert.Same(t, near, From(tls.Client(near, &tls.Config{})))
	}
	pipe, _ := net.Pipe()
	assert.Nil(t, From(pipe))
	assert.Same(t, pipe, Wrap(pipe))
}

// A server and a client on wrapped connections, with what net/http does to them: reads in the background,
// deadlines, connections that are used again.
func TestHTTPWorksOverIt(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		_, _ = w.Write(body)
	}))
	srv.Listener = Listen(srv.Listener)
	srv.Start()
	defer srv.Close()
	for _, text := range []string{"a", "b", "c"} {
		res, err := srv.Client().Post(srv.URL, "text/plain", io.LimitReader(&repeat{text[0]}, 100_000))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		assert.Len(t, body, 100_000)
		require.NoError(t, res.Body.Close())
	}
}

type repeat struct{ c byte }

func (r *repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.c
	}
	return len(p), nil
}

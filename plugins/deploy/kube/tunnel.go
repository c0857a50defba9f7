// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go's port-forward dialers still speak these types
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	dialTimeout = 15 * time.Second
	// drainTimeout is how long an engine may take to end its side of a connection
	// after the client has ended its own.
	drainTimeout = time.Second
)

// way opens connections to one engine.
type way interface {
	connect() (io.ReadWriteCloser, error)
	close()
	pod() string
}

// tunnel is a local port whose connections go to engines in turn, as those of a
// Service do. Its address stays when the ways to the engines are lost and found.
type tunnel struct {
	listener net.Listener
	ways     []way
	next     atomic.Uint64

	mu     sync.Mutex
	open   map[io.Closer]string // the pod that a connection goes to
	closed bool
	busy   sync.WaitGroup
}

func openTunnel(ways []way) (*tunnel, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a local port: %w", err)
	}
	t := &tunnel{listener: listener, ways: ways, open: map[io.Closer]string{}}
	t.busy.Go(t.accept)
	return t, nil
}

func (t *tunnel) url() string { return "http://" + t.listener.Addr().String() }

func (t *tunnel) accept() {
	for {
		local, err := t.listener.Accept()
		if err != nil {
			return // closed
		}
		t.busy.Go(func() { t.serve(local) })
	}
}

// keep remembers what close and cut must end; false when it is too late.
func (t *tunnel) keep(c io.Closer, pod string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.open[c] = pod
	}
	return !t.closed
}

func (t *tunnel) forget(c io.Closer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

// cut ends the connections to a pod whose engine has ended: not every node tells
// the other side of a port-forward.
func (t *tunnel) cut(pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, to := range t.open {
		if to == pod {
			c.Close()
		}
	}
}

// serve joins a local connection to the next engine. An engine that cannot be
// reached is seen by the client as a connection that ends.
func (t *tunnel) serve(local net.Conn) {
	defer local.Close()
	w := t.ways[t.next.Add(1)%uint64(len(t.ways))]
	if !t.keep(local, w.pod()) {
		return
	}
	defer t.forget(local)
	remote, err := w.connect()
	if err != nil {
		return
	}
	defer remote.Close()
	answered := make(chan struct{})
	t.busy.Go(func() {
		defer close(answered)
		_, _ = io.Copy(local, remote) // either side may end it at any time
		local.Close()
	})
	_, _ = io.Copy(remote, local)
	if half, ok := remote.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		select {
		case <-answered:
		case <-time.After(drainTimeout):
		}
	}
}

// closeLimit is how long close waits for connections to end. One to a container
// that has died can be in the making for half a minute, and the pod, which holds a
// GPU, is not removed before close returns.
const closeLimit = time.Second

// close ends the port and every connection.
func (t *tunnel) close() {
	t.mu.Lock()
	t.closed = true
	t.listener.Close()
	for c := range t.open {
		c.Close()
	}
	t.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		for _, w := range t.ways {
			w.close()
		}
		t.busy.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeLimit):
	}
}

// direct is a way to a pod that is reached without help.
type direct struct{ name, address string }

func (d direct) connect() (io.ReadWriteCloser, error) {
	return net.DialTimeout("tcp", d.address, dialTimeout)
}

func (d direct) close() {}

func (d direct) pod() string { return d.name }

// forward is a port-forward to a pod, through the API server. It is dialled when
// first used, and again when it was lost.
type forward struct {
	name   string // of the pod
	dialer httpstream.Dialer
	port   string
	lost   *atomic.Int64 // connections that ended by themselves

	mu      sync.Mutex
	current httpstream.Connection
	closed  bool
	request int
}

func (d *Deployer) forward(pod string, port int, lost *atomic.Int64) (*forward, error) {
	url := d.Core.RESTClient().Post().Resource("pods").Namespace(d.Namespace).Name(pod).SubResource("portforward").URL()
	config := rest.CopyConfig(d.Config)
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	plain := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	socket, err := portforward.NewSPDYOverWebsocketDialer(url, config)
	if err != nil {
		return nil, err
	}
	dialer := portforward.NewFallbackDialer(socket, plain, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	return &forward{name: pod, dialer: dialer, port: strconv.Itoa(port), lost: lost}, nil
}

// connection returns the open port-forward, or dials one.
func (f *forward) connection() (httpstream.Connection, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, 0, net.ErrClosed
	}
	f.request++
	if f.current != nil {
		select {
		case <-f.current.CloseChan():
		default:
			return f.current, f.request, nil
		}
	}
	connection, err := f.dial()
	if err != nil {
		return nil, 0, err
	}
	f.current = connection
	go f.mourn(connection)
	return connection, f.request, nil
}

// mourn counts a port-forward that ends before it is closed.
func (f *forward) mourn(connection httpstream.Connection) {
	<-connection.CloseChan()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.lost.Add(1)
	}
}

// dial gives up on a server that does not answer; the library itself would not.
func (f *forward) dial() (httpstream.Connection, error) {
	type answer struct {
		connection httpstream.Connection
		err        error
	}
	answers := make(chan answer, 1)
	go func() {
		connection, _, err := f.dialer.Dial(portforward.PortForwardProtocolV1Name)
		answers <- answer{connection, err}
	}()
	select {
	case a := <-answers:
		return a.connection, a.err
	case <-time.After(dialTimeout):
		go func() {
			if a := <-answers; a.err == nil {
				a.connection.Close()
			}
		}()
		return nil, fmt.Errorf("port-forward: %w", context.DeadlineExceeded)
	}
}

func (f *forward) connect() (io.ReadWriteCloser, error) {
	connection, request, err := f.connection()
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	header.Set(corev1.PortHeader, f.port)
	header.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(request))
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failed, err := connection.CreateStream(header)
	if err != nil {
		connection.Close() // it is broken: the next one dials again
		return nil, err
	}
	failed.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(header)
	if err != nil {
		connection.RemoveStreams(failed)
		connection.Close()
		return nil, err
	}
	return &forwarded{Stream: data, failed: failed, connection: connection}, nil
}

func (f *forward) pod() string { return f.name }

func (f *forward) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.current != nil {
		f.current.Close()
	}
}

// forwarded is one connection in a port-forward.
type forwarded struct {
	httpstream.Stream
	failed     httpstream.Stream
	connection httpstream.Connection
}

// CloseWrite tells the other side that no more comes.
func (f *forwarded) CloseWrite() error { return f.Stream.Close() }

// Close ends both directions and drops what has not been sent.
func (f *forwarded) Close() error {
	err := errors.Join(f.Reset(), f.failed.Reset())
	f.connection.RemoveStreams(f.Stream, f.failed)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// contextName is the context, cluster and user of the bed's kubeconfig files.
const contextName = "bed"

// controlPlane is the processes of a cluster without nodes.
type controlPlane struct {
	bin, dir string
	guard    guard
	ports    *ports
	etcd     int // ports
	api      int
	kwok     int
	token    string // of a member of system:masters
	ca       []byte // PEM
	running  map[string]*child
	log      io.Writer
}

// startStore writes the configuration and starts etcd and the API server.
func (c *controlPlane) startStore(ctx context.Context) error {
	c.token = rand.Text()
	for _, port := range []*int{&c.etcd, &c.api, &c.kwok} {
		var err error
		if *port, err = c.ports.free(); err != nil {
			return err
		}
	}
	if err := c.writeFiles(); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

func (c *controlPlane) path(name string) string { return filepath.Join(c.dir, name) }

func (c *controlPlane) writeFiles() error {
	pem, key, err := cert.GenerateSelfSignedCertKey(loopback, []net.IP{net.ParseIP(loopback)}, []string{"localhost"})
	if err != nil {
		return err
	}
	signing, err := keyutil.MakeEllipticPrivateKeyPEM() // of service account tokens
	if err != nil {
		return err
	}
	c.ca = pem
	return errors.Join(
		os.WriteFile(c.path("api.crt"), pem, 0o600),
		os.WriteFile(c.path("api.key"), key, 0o600),
		os.WriteFile(c.path("sa.key"), signing, 0o600),
		os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600),
		os.WriteFile(c.path("tokens.csv"), []byte(c.token+`,bed,bed,"system:masters"`+"\n"), 0o600),
		clientcmd.WriteToFile(*c.kubeconfig(c.token, ""), c.path("kubeconfig")),
	)
}

// kubeconfig is a client configuration for the bearer of a token.
func (c *controlPlane) kubeconfig(token, namespace string) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters[contextName] = &clientcmdapi.Cluster{Server: "https://" + address(c.api), CertificateAuthorityData: c.ca}
	config.AuthInfos[contextName] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[contextName] = &clientcmdapi.Context{Cluster: contextName, AuthInfo: contextName, Namespace: namespace}
	config.CurrentContext = contextName
	return config
}

// rest is the client configuration of an administrator, without client-side throttling.
func (c *controlPlane) rest() *rest.Config {
	return &rest.Config{
		Host: "https://" + address(c.api), BearerToken: c.token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		WarningHandler:  rest.NoWarnings{}, // of kinds that are old
	}
}

func (c *controlPlane) startEtcd(ctx context.Context) error {
	peer, err := c.ports.free()
	if err != nil {
		return err
	}
	client, peers := "http://"+address(c.etcd), "http://"+address(peer)
	err = c.start(etcd, "--data-dir", c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	if err != nil {
		return err
	}
	return c.await(ctx, etcd, client+"/health")
}

func (c *controlPlane) startAPIServer(ctx context.Context) error {
	err := c.start(apiserver, "--etcd-servers=http://"+address(c.etcd), "--bind-address="+loopback, fmt.Sprintf("--secure-port=%d", c.api),
		"--tls-cert-file="+c.path("api.crt"), "--tls-private-key-file="+c.path("api.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", "--token-auth-file="+c.path("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("sa.key"), "--service-account-signing-key-file="+c.path("sa.key"),
		"--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"),
		"--kubelet-preferred-address-types=InternalIP",
		// A loopback address is not allowed in the endpoints of the service "kubernetes".
		"--endpoint-reconciler-type=none",
		// Otherwise new nodes are tainted until a controller that is not run here has seen them.
		"--disable-admission-plugins=TaintNodesByCondition")
	if err != nil {
		return err
	}
	return c.await(ctx, apiserver, "https://"+address(c.api)+"/readyz")
}

// startControllers starts what works through the API server.
func (c *controlPlane) startControllers() error {
	admin := "--kubeconfig=" + c.path("kubeconfig")
	serving := []string{"--leader-elect=false", "--bind-address=" + loopback}
	port, err := c.ports.free()
	if err != nil {
		return err
	}
	err = c.start(controller, append(serving, admin, fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+c.path("controller"),
		"--service-account-private-key-file="+c.path("sa.key"), "--use-service-account-credentials=false",
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--controllers=*,-node-ipam-controller,-node-lifecycle-controller,-node-route-controller,-cloud-node-lifecycle-controller,-certificatesigningrequest-signing-controller")...)
	if err != nil {
		return err
	}
	if port, err = c.ports.free(); err != nil {
		return err
	}
	return c.start(scheduler, append(serving, admin, fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+c.path("scheduler"))...)
}

// start runs a component, its output in a file of its name.
func (c *controlPlane) start(name string, args ...string) error {
	log, err := logFile(c.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close() // the process holds its own
	child, err := c.guard.start(name, append([]string{filepath.Join(c.bin, name)}, args...), func(command *exec.Cmd) {
		command.Dir, command.Stdout, command.Stderr = c.dir, log, log
	})
	if err != nil {
		return err
	}
	c.running[name] = child
	go func() {
		if <-child.exited; !child.released.Load() {
			fmt.Fprintf(c.log, "bed: %s ended with exit code %d\n%s\n", name, child.code, c.lastWords(name))
		}
	}()
	return nil
}

// lastWords is the end of a component's log.
func (c *controlPlane) lastWords(name string) string {
	log, err := os.ReadFile(c.path(name + ".log"))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(log), 20)
}

// await waits until a component answers with status 200.
func (c *controlPlane) await(ctx context.Context, name, url string) error {
	child := c.running[name]
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // kwok makes its own certificate
	}}
	return poll(ctx, "wait for "+name, func(ctx context.Context) (bool, error) {
		if !child.running() {
			return false, fmt.Errorf("%s ended with exit code %d\n%s", name, child.code, c.lastWords(name))
		}
		return status(ctx, client, url, c.token) == http.StatusOK, nil
	})
}

// status is that of a GET, or 0 when there is no answer.
func status(ctx context.Context, client *http.Client, url, token string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

// stop ends components, at once: politely it would take the API server ten seconds.
func (c *controlPlane) stop(names ...string) {
	for _, name := range names {
		if child := c.running[name]; child != nil {
			child.kill()
		}
	}
	for _, name := range names {
		if child := c.running[name]; child != nil {
			<-child.exited
		}
	}
}

const pollEvery = 20 * time.Millisecond

// poll calls done until it is true, fails, or ctx ends.
func poll(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case ok:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// sleep waits for d and says whether ctx has lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

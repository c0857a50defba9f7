// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// pullFlip is how long each of the two states of an image that cannot be pulled
// lasts; a kubelet's last longer and longer.
const pullFlip = 300 * time.Millisecond

// pull plays the faults that come before the start of a container. It says
// whether the containers may start.
func (p *pod) pull(ctx context.Context, all []*container) bool {
	c := p.faulty(all)
	image := c.spec.Image
	switch p.fault.name {
	case "slow-pull":
		c.event(ctx, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
		return sleep(ctx, p.fault.after)
	case "image-pull":
		return p.failToPull(ctx, c)
	case "invalid-image":
		message := p.fault.message(fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: invalid reference format", image, image))
		c.event(ctx, corev1.EventTypeWarning, "InspectFailed", message)
		c.event(ctx, corev1.EventTypeWarning, "Failed", "Error: InvalidImageName")
		p.hold(ctx, []*container{c}, "InvalidImageName", message)
		return false
	case "config-error":
		message := p.fault.message(`configmap "engine-config" not found`)
		c.event(ctx, corev1.EventTypeWarning, "Failed", "Error: "+message)
		p.hold(ctx, []*container{c}, "CreateContainerConfigError", message)
		return false
	}
	return ctx.Err() == nil
}

// faulty is the container that the pod's fault is about.
func (p *pod) faulty(all []*container) *container {
	for _, c := range all {
		if c.faulty {
			return c
		}
	}
	return all[len(all)-1]
}

// failToPull alternates between the two states until the pod is deleted.
func (p *pod) failToPull(ctx context.Context, c *container) bool {
	image := c.spec.Image
	message := p.fault.message(fmt.Sprintf("rpc error: code = NotFound desc = failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", image, image, image))
	backOff := fmt.Sprintf("Back-off pulling image %q", image)
	for {
		c.event(ctx, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
		c.event(ctx, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", image, message))
		c.event(ctx, corev1.EventTypeWarning, "Failed", "Error: ErrImagePull")
		c.wait(ctx, "ErrImagePull", message)
		if !sleep(ctx, pullFlip) {
			return false
		}
		c.event(ctx, corev1.EventTypeNormal, "BackOff", backOff)
		c.event(ctx, corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
		c.wait(ctx, "ImagePullBackOff", fmt.Sprintf("%s: ErrImagePull: %s", backOff, message))
		if !sleep(ctx, pullFlip) {
			return false
		}
	}
}

// hold leaves containers waiting until the pod is deleted.
func (p *pod) hold(ctx context.Context, held []*container, reason, message string) {
	for _, c := range held {
		c.wait(ctx, reason, message)
	}
	<-ctx.Done()
}

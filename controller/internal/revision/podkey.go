package revision

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/wire"
)

// podKeysAgain is when the Secret of a namespace is looked at again. The controller may not watch
// Secrets: one that somebody has changed is repaired then.
const podKeysAgain = 10 * time.Minute

// seenByAll is the age of a Revision that the cache of every replica has.
const seenByAll = time.Minute

// kserveLabel is on what KServe makes for a model.
const kserveLabel = "serving.kserve.io/inferenceservice"

// podKeys keeps the Secret names.PodSecret in each namespace that has a Revision.
type podKeys struct {
	kube      kubernetes.Interface
	key       func() []byte
	now       func() time.Time
	revisions listers.RevisionLister
	// inUse asks the API server whether a namespace has a Revision: the cache of a replica may be a
	// moment behind that of another one, which has written the Secret for the next Revision.
	inUse func(ctx context.Context, namespace string) (bool, error)
	// emptied are namespaces that may have lost their last Revision. One whose Secret was made is
	// among them: the Revision may have gone before a reconcile that had seen it made that.
	emptied chan string

	mutex sync.Mutex
	known map[string]*podKey // by namespace
}

// podKey is the Secret of a namespace as it was seen last. Its mutex is held while it is written.
type podKey struct {
	mutex sync.Mutex
	key   string
	seen  time.Time
	// doubt: another replica may be about to delete the Secret, as it was seen.
	doubt atomic.Bool
}

func newPodKeys(kube kubernetes.Interface, key func() []byte, now func() time.Time, revisions listers.RevisionLister,
	inUse func(ctx context.Context, namespace string) (bool, error)) *podKeys {
	return &podKeys{kube: kube, key: key, now: now, revisions: revisions, inUse: inUse, emptied: make(chan string, 1024), known: map[string]*podKey{}}
}

func (p *podKeys) of(namespace string) *podKey {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.known[namespace]
	if known == nil {
		known = &podKey{}
		p.known[namespace] = known
	}
	return known
}

// ensure makes the Secret of a namespace what it has to be. Pods that start read it.
func (p *podKeys) ensure(ctx context.Context, namespace string) error {
	key := wire.NamespaceKey(p.key(), namespace)
	known := p.of(namespace)
	known.mutex.Lock()
	defer known.mutex.Unlock()
	doubt := known.doubt.Swap(false)
	if !doubt && known.key == string(key) && p.now().Sub(known.seen) < podKeysAgain {
		return nil
	}
	if err := p.renew(ctx, namespace, key, doubt); err != nil {
		if doubt {
			known.doubt.Store(true)
		}
		return fmt.Errorf("key of the pods of namespace %s: %w", namespace, err)
	}
	known.key, known.seen = string(key), p.now()
	return nil
}

func (p *podKeys) renew(ctx context.Context, namespace string, key []byte, doubt bool) error {
	if doubt {
		// Another Secret: who deletes the one that it saw does not touch this one.
		err := p.kube.CoreV1().Secrets(namespace).Delete(ctx, names.PodSecret, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return p.write(ctx, namespace, key)
}

// name names the key that a namespace's Secret has, as this process wrote or saw it.
func (p *podKeys) name(namespace string) string {
	known := p.of(namespace)
	known.mutex.Lock()
	defer known.mutex.Unlock()
	return keyName(known.key)
}

// keyName tells keys apart, and nothing of them: they are 256 bits that nobody can guess.
func keyName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:4])
}

// addKey lets queue-proxy read the key of its namespace: from a volume, in which the kubelet shows
// a key that is rotated, or from the environment if the pod has no other volume. A kubelet starts a
// pod without volumes 300 ms sooner, because it looks only that often whether they are mounted. The
// webhook of KServe copies the environment of queue-proxy into another container, which must not
// have the key.
func addKey(rev *servingv1.Revision, pod *corev1.PodSpec, sidecar *corev1.Container, told *wire.Sidecar) {
	if keyInEnvironment(pod) && rev.Labels[kserveLabel] == "" {
		// Not optional: a container that starts without it would never have it.
		sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: wire.EnvKey, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: names.PodSecret}, Key: wire.TokenSecretKey}}})
		return
	}
	optional := true // so that the lack of it ends reports and announcements, and not pods
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: keyVolume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: names.PodSecret, Optional: &optional}}})
	sidecar.VolumeMounts = append(sidecar.VolumeMounts, corev1.VolumeMount{Name: keyVolume, MountPath: keyPath, ReadOnly: true})
	told.KeyFile = keyPath + "/" + wire.TokenSecretKey
}

// keyInEnvironment: no volume of its own, nor the one that Kubernetes adds for the service account.
func keyInEnvironment(pod *corev1.PodSpec) bool {
	mounts := pod.AutomountServiceAccountToken
	return len(pod.Volumes) == 0 && mounts != nil && !*mounts
}

// deleted is told of a Revision that is gone.
func (p *podKeys) deleted(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	namespace := object.(metav1.Object).GetNamespace()
	// Each replica is told, and each one removes the Secret if it saw no other Revision.
	left, err := p.revisions.Revisions(namespace).List(labels.Everything())
	if err != nil || slices.ContainsFunc(left, func(rev *servingv1.Revision) bool { return p.now().Sub(rev.CreationTimestamp.Time) > seenByAll }) {
		return
	}
	p.of(namespace).doubt.Store(true)
	p.lookAgain(namespace)
}

func (p *podKeys) lookAgain(namespace string) {
	select {
	case p.emptied <- namespace:
	default: // the Secret stays until the namespace goes
	}
}

// run deletes the Secrets of namespaces without a Revision until ctx ends.
func (p *podKeys) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case namespace := <-p.emptied:
			p.remove(ctx, namespace)
		}
	}
}

// remove deletes the Secret of a namespace without a Revision, as it was before that was seen. If
// it fails the Secret stays until the namespace goes, which does no harm.
func (p *podKeys) remove(ctx context.Context, namespace string) {
	known := p.of(namespace)
	known.mutex.Lock()
	defer known.mutex.Unlock()
	secrets := p.kube.CoreV1().Secrets(namespace)
	have, err := secrets.Get(ctx, names.PodSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return
	}
	if used, err := p.inUse(ctx, namespace); err != nil || used {
		return
	}
	known.doubt.Store(true) // who waits to ensure it has seen it as it was
	if err == nil && secrets.Delete(ctx, names.PodSecret, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}}) != nil {
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.known, namespace)
}

func (p *podKeys) write(ctx context.Context, namespace string, key []byte) error {
	secrets := p.kube.CoreV1().Secrets(namespace)
	have, err := secrets.Get(ctx, names.PodSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names.PodSecret},
			Data:       map[string][]byte{wire.TokenSecretKey: key},
		}, metav1.CreateOptions{})
		if err == nil {
			p.lookAgain(namespace)
		}
		return err
	}
	if err != nil || bytes.Equal(have.Data[wire.TokenSecretKey], key) {
		return err
	}
	have.Data = map[string][]byte{wire.TokenSecretKey: key}
	_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

package revision

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

// podKeysAgain is when the Secret of a namespace is looked at again. The controller may not watch
// Secrets: one that somebody has changed is repaired then.
const podKeysAgain = 10 * time.Minute

// podKeys keeps the Secret names.PodSecret in each namespace that has a Revision.
type podKeys struct {
	kube      kubernetes.Interface
	key       func() []byte
	now       func() time.Time
	revisions listers.RevisionLister
	// emptied are namespaces that may have lost their last Revision.
	emptied chan string

	mutex sync.Mutex
	known map[string]*podKey // by namespace
}

// podKey is the Secret of a namespace as it was seen last. Its mutex is held while it is written.
type podKey struct {
	mutex sync.Mutex
	key   string
	seen  time.Time
}

func newPodKeys(kube kubernetes.Interface, key func() []byte, now func() time.Time, revisions listers.RevisionLister) *podKeys {
	return &podKeys{kube: kube, key: key, now: now, revisions: revisions, emptied: make(chan string, 1024), known: map[string]*podKey{}}
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

// ensure makes the Secret of a namespace what it has to be. Pods that start mount it.
func (p *podKeys) ensure(ctx context.Context, namespace string) error {
	key := wire.NamespaceKey(p.key(), namespace)
	known := p.of(namespace)
	known.mutex.Lock()
	defer known.mutex.Unlock()
	if known.key == string(key) && p.now().Sub(known.seen) < podKeysAgain {
		return nil
	}
	if err := p.write(ctx, namespace, key); err != nil {
		return fmt.Errorf("key of the pods of namespace %s: %w", namespace, err)
	}
	known.key, known.seen = string(key), p.now()
	return nil
}

// deleted is told of a Revision that is gone.
func (p *podKeys) deleted(object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	select {
	case p.emptied <- object.(metav1.Object).GetNamespace():
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

func (p *podKeys) remove(ctx context.Context, namespace string) {
	known := p.of(namespace)
	known.mutex.Lock()
	defer known.mutex.Unlock()
	if left, err := p.revisions.Revisions(namespace).List(labels.Everything()); err != nil || len(left) > 0 {
		return
	}
	known.key = ""
	// If this fails the Secret stays until the namespace goes, which does no harm.
	_ = p.kube.CoreV1().Secrets(namespace).Delete(ctx, names.PodSecret, metav1.DeleteOptions{})
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
		return err
	}
	if err != nil || bytes.Equal(have.Data[wire.TokenSecretKey], key) {
		return err
	}
	have.Data = map[string][]byte{wire.TokenSecretKey: key}
	_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

package cluster

import (
	"context"
	"testing"
	"time"
)

// Begin connects a test to the cluster, gives it a namespace and limits its duration.
func Begin(t *testing.T, prefix string, limit time.Duration) (ctx context.Context, c *Cluster, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	c, err := Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, c, c.NamespaceOf(ctx, t, prefix)
}

// NamespaceOf gives a test a namespace. After a failure it dumps the namespace.
func (c *Cluster) NamespaceOf(ctx context.Context, t *testing.T, prefix string) string {
	t.Helper()
	namespace, remove, err := c.Namespace(ctx, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			c.Dump(ctx, namespace, t.Output())
		}
		if err := remove(ctx); err != nil {
			t.Error(err)
		}
	})
	return namespace
}

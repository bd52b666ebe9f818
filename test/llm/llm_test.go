//go:build llm

package llm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// answer is what the tests read of OpenAI's chat API.
type answer struct {
	Choices []struct {
		Message, Delta struct{ Content string }
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
}

// question asks for so many tokens, even if the model would end before.
func question(tokens int, more string) string {
	return fmt.Sprintf(`{"model": "gemma-3-270m", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": %d, "ignore_eos": true%s}`, tokens, more)
}

func TestAModelAnswersFromZeroAndScalesByWhatItTells(t *testing.T) {
	ctx, c, namespace := cluster.Begin(t, "llm", 15*time.Minute)
	manifest, err := os.ReadFile("../../samples/llm/service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Three pods are as many as a small machine has room for, and the test need not wait for the
	// next burst.
	faster := strings.Replace(string(manifest), "autoscaling.knative.dev/scale-down-delay: 1m",
		"autoscaling.knative.dev/window: 10s\n        autoscaling.knative.dev/max-scale: \"3\"", 1)
	if err := c.Apply(ctx, namespace, faster); err != nil {
		t.Fatal(err)
	}
	url, err := c.AwaitReady(ctx, namespace, "llm")
	if err != nil {
		t.Fatal(err)
	}
	url += "/v1/chat/completions"
	if err := c.AwaitNoPods(ctx, namespace, "llm"); err != nil {
		t.Fatal(err)
	}
	client := c.Client(5 * time.Minute)

	reply := probe.Post(ctx, client, url, question(16, ""))
	said := read(t, reply)
	t.Logf("from zero, 16 tokens after %s: %q", reply.Took.Round(time.Millisecond), said.Choices[0].Message.Content)
	if said.Usage == nil || said.Usage.PromptTokens == 0 || said.Usage.CompletionTokens != 16 {
		t.Errorf("usage: %s", reply.Body)
	}
	warm := probe.Post(ctx, client, url, question(16, ""))
	read(t, warm)
	t.Logf("again, 16 tokens after %s", warm.Took.Round(time.Millisecond))

	streams(ctx, t, client, url)

	pods := make(chan int, 1)
	watching, stop := context.WithCancel(ctx)
	go func() {
		most := 0
		for cluster.Pause(watching, 200*time.Millisecond) == nil {
			if running, err := c.Pods(ctx, namespace, "llm", false); err == nil {
				most = max(most, len(running))
			}
		}
		pods <- most
	}()
	var all sync.WaitGroup
	begun := time.Now()
	for range 12 {
		all.Go(func() { read(t, probe.Post(ctx, client, url, question(64, ""))) })
	}
	all.Wait()
	stop()
	most := <-pods
	t.Logf("12 prompts of 64 tokens after %s, with at most %d pods", time.Since(begun).Round(time.Second), most)
	if most != 3 {
		t.Errorf("while prompts waited there were at most %d pods, want 3", most)
	}
	if err := c.AwaitNoPods(ctx, namespace, "llm"); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, reply probe.Reply) (said answer) {
	t.Helper()
	if err := json.Unmarshal([]byte(reply.Body), &said); err != nil || !reply.OK() || len(said.Choices) != 1 || said.Choices[0].Message.Content == "" {
		t.Errorf("%v: %v", err, reply)
		said.Choices = make([]struct{ Message, Delta struct{ Content string } }, 1)
	}
	return said
}

// streams reads an answer token by token: each comes when it is there.
func streams(ctx context.Context, t *testing.T, client *http.Client, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(question(64, `, "stream": true, "stream_options": {"include_usage": true}`)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var first, last time.Time
	var end string
	tokens, used := 0, 0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		end = data
		var part answer
		if json.Unmarshal([]byte(data), &part) != nil {
			continue
		}
		if part.Usage != nil {
			used = part.Usage.CompletionTokens
		}
		if len(part.Choices) == 1 && part.Choices[0].Delta.Content != "" {
			tokens++
			last = time.Now()
			if first.IsZero() {
				first = last
			}
		}
	}
	if lines.Err() != nil || end != "[DONE]" || tokens < 16 || used != 64 {
		t.Errorf("%v: %d parts for %d tokens, and then %q", lines.Err(), tokens, used, end)
	}
	if !last.After(first) {
		t.Error("all parts came at once")
	}
	t.Logf("a stream of %d parts in %s", tokens, last.Sub(first).Round(time.Millisecond))
}

// A pod with a model sleeps, is told of it, and answers again from the same pod.
func TestAModelIsToldOfItsSleep(t *testing.T) {
	ctx, c, namespace := cluster.Begin(t, "llm", 10*time.Minute)
	manifest, err := os.ReadFile("../../samples/llm/service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sleepy := strings.Replace(string(manifest), "autoscaling.knative.dev/scale-down-delay: 1m",
		"autoscaling.knative.dev/window: 10s\n        autoscaling.ebb.dev/standby: \"1\"", 1)
	if err := c.Apply(ctx, namespace, sleepy); err != nil {
		t.Fatal(err)
	}
	url, err := c.AwaitReady(ctx, namespace, "llm")
	if err != nil {
		t.Fatal(err)
	}
	pods, err := c.Pods(ctx, namespace, "llm", false)
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods: %v", len(pods), err)
	}
	said := func(call string) bool {
		log, err := c.Kube.CoreV1().Pods(namespace).GetLogs(pods[0].Name, &corev1.PodLogOptions{Container: "user-container"}).DoRaw(ctx)
		return err == nil && strings.Contains(string(log), `"POST `+call+` HTTP/1.1" 204`)
	}
	if err := cluster.Until(ctx, func() (bool, string, error) { return said("/sleep"), "not told of its sleep", nil }); err != nil {
		t.Fatal(err)
	}
	read(t, probe.Post(ctx, c.Client(5*time.Minute), url+"/v1/chat/completions", question(16, "")))
	if !said("/wake") {
		t.Error("it was not told of its wake")
	}
	if now, err := c.Pods(ctx, namespace, "llm", false); err != nil || len(now) != 1 || now[0].Name != pods[0].Name {
		t.Errorf("other pods than %s: %d, %v", pods[0].Name, len(now), err)
	}
}

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

/** The smallest useful Java service, of the JDK alone: it listens on $PORT and says hello to $TARGET. */
public class Hello {
  public static void main(String[] arguments) throws Exception {
    var env = System.getenv();
    var body = ("Hello " + env.getOrDefault("TARGET", "World") + "!\n").getBytes("UTF-8");

    var server = HttpServer.create(new InetSocketAddress(Integer.parseInt(env.getOrDefault("PORT", "8080"))), 1024);
    server.createContext("/", exchange -> {
      try (exchange) {
        exchange.getRequestBody().readAllBytes();
        exchange.getResponseHeaders().set("Content-Type", "text/plain; charset=utf-8");
        boolean head = exchange.getRequestMethod().equals("HEAD");
        exchange.sendResponseHeaders(200, head ? -1 : body.length);
        if (!head) exchange.getResponseBody().write(body);
      }
    });
    server.setExecutor(Executors.newCachedThreadPool());
    server.start();
  }
}

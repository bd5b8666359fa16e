# docker build -t graphrun . && docker run --rm graphrun
FROM debian:12-slim
COPY . /graphrun
WORKDIR /graphrun
RUN tools/setup.sh && rm -rf /var/lib/apt/lists/*
CMD ["tools/quickstart.sh"]
